"""Positions in a list of all captures, when what is listed under one key changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from dedupindex.api import Index
from dedupindex.capture import Capture
from dedupindex.crawls import crawl_captures, lifecycle, merge_crawls
from dedupindex.crawls.combined_view import ListPosition
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores import make_store
from dedupindex.errors import BadQuery
from dedupindex.index.identity import Settings
from dedupindex.post_crawl.purge.remove import purge
from dedupindex.post_crawl.purge.target import Target, TargetKind
from tests.conftest import MakeIndex
from tests.support.captures import capture

DIGESTS = Settings(url_index=False, canonical=False)
URLS = [b"http://%s.example/" % name for name in (b"a", b"b", b"c")]
Change = Callable[[Path], object]


def crawl(index: Path, name: str, *captures: Capture) -> None:
    """Commit a crawl that reports captures."""

    def report(writing: Writing, settings: Settings) -> None:
        lifecycle.begin(writing, name)
        added = crawl_captures.add(
            writing, writing.crawl(name), captures, settings, lambda capture: ""
        )
        assert added.added == len(captures)
        lifecycle.commit(writing, name, "Finished")

    with Index(index) as opened:
        settings = Settings(**opened.stats()["settings"])
    with closing(make_store(index)) as store:
        store.write(partial(report, settings=settings))


def purged(day: int) -> Change:
    target = Target(TargetKind.CONTAINER, (f"/warcs/{day}.warc.gz",))
    return lambda index: purge(index, target, force=True)


def merged(index: Path) -> None:
    with closing(make_store(index)) as store:
        assert merge_crawls.merge(index, store) is not None
        merge_crawls.sweep(store, 0.0, seen := dict[int, float]())
        merge_crawls.sweep(store, merge_crawls.KEPT, seen)


def added(day: int) -> Change:
    return lambda index: crawl(index, f"added-{day}", capture(1, URLS[day % 3], day))


@pytest.mark.parametrize("settings", [Settings(), DIGESTS, Settings(keep="latest")])
@pytest.mark.parametrize("change", [purged(1), purged(4), purged(9), merged, added(2), added(28)])
def test_no_capture_is_lost_or_repeated(
    change: Change, settings: Settings, make_index: MakeIndex
) -> None:
    """One after any position is listed exactly if the list has it then, at the place it has."""
    index = make_index([capture(1, URLS[0], 9), capture(2, URLS[0], 9)], settings)
    for day in (1, 4, 20):
        crawl(index, f"c{day}", capture(1, URLS[0 if settings.url_index else day % 3], day))
    with Index(index) as opened:
        before = list(opened.captures_after())
        assert [one.date[8:10] for _, one in before if one.digest == capture(1).digest] == [
            b"01", b"04", b"09", b"20",
        ]  # fmt: skip
        assert [one for _, one in before] == list(opened.captures())
    change(index)
    with Index(index) as opened:
        whole = list(opened.captures_after())
        places = {one: position for position, one in before}
        for position, one in whole:
            assert places.get(one, position) == position
        for at, (position, _) in enumerate(before):
            known = {place for place, _ in before[: at + 1]}
            rest = list(opened.captures_after(position))
            assert not known & {place for place, _ in rest}
            assert {place for place, _ in whole} & {place for place, _ in before[at + 1 :]} <= {
                place for place, _ in rest
            }
            assert rest == whole[len(whole) - len(rest) :]


def test_the_capture_of_a_crawl_follows_one_that_is_purged(make_index: MakeIndex) -> None:
    index = make_index([capture(1, URLS[0], 1)])
    crawl(index, "b", capture(1, URLS[0], 2))
    with Index(index) as opened:
        (position, _), (_, later) = opened.captures_after()
    purged(1)(index)
    with Index(index) as opened:
        assert [one for _, one in opened.captures_after(position)] == [later]


def test_what_a_merge_leaves_follows_an_earlier_capture(make_index: MakeIndex) -> None:
    index = make_index([capture(1, URLS[0], 1)], Settings(keep="latest"))
    crawl(index, "b", capture(1, URLS[0], 2))
    with Index(index) as opened:
        (position, _), (_, later) = opened.captures_after()
    merged(index)
    with Index(index) as opened:
        assert [one.date for _, one in opened.captures_after(position)] == [later.date]


def test_what_a_crawl_has_beside_the_index_is_listed_once(make_index: MakeIndex) -> None:
    """Without URLs in keys, too, where a crawl has several under one key."""
    held = capture(1, URLS[1], 2)
    index = make_index([held], DIGESTS)
    crawl(index, "a", capture(1, URLS[0], 1))
    crawl(index, "b", held)
    with Index(index) as opened:
        assert [one.url for _, one in opened.captures_after()] == URLS[:2]


def test_text_of_positions() -> None:
    lengths = Settings().keys().lengths()
    key = b"\x02" + bytes(range(29))
    position = ListPosition.of(key, capture(1, URLS[0], 1))
    text = str(position)
    assert ListPosition.parse(text, lengths) == position
    written, second, url_hash = text.split(".")
    for none in (
        f"{written}.1", f"{written}.1_0", f"{written}.-3", written, f"{text}.1", f"{text}\n",
        f"{written}.{second[:-1]}٣.{url_hash}", f"{written}.{second}.{url_hash[:-1]}",
        f"00{written[2:]}.{second}.{url_hash}", f"{written[:-2]}.{second}.{url_hash}",
        f"{written[:-1]}.{second}.{url_hash}", f"ff{written[2:]}.{second}.{url_hash}", text.upper(),
    ):  # fmt: skip
        with pytest.raises(BadQuery, match="no list of captures has a position"):
            ListPosition.parse(none, lengths)
