"""The stages over some sources, and other readers on the result.

new = deduplicated(old, folder)     # manifest, resolve, rewrite, as they are typed
verdicts(old, new)                  # warcio, FastWARC and jwarc find nothing that was not there
replayed(old, new, folder)          # pywb shows every capture as before
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

from fastwarc.warc import ArchiveIterator, WarcRecordType

from dedupindex.verify.collection import Collection
from dedupindex.verify.compare_collections import Against
from dedupindex.verify.issues import REASONS, REMARK
from tests.peers.environments import JWARC, jar
from tests.peers.replay import records, replay, second
from tests.unit.cli.test_cli import dedupindex


class Deduplicated(NamedTuple):
    """What the stages made, and what they said."""

    folder: Path
    planned: dict[str, Any]
    done: dict[str, Any]


def deduplicated(old: Path, folder: Path, *options: object) -> Deduplicated:
    """All archives below `old`, rewritten below ``folder/new``; `options` are for the plan.

    Before anybody else looks, the result must pass our own check.
    """
    manifest, plan, new = folder / "manifest", folder / "plan", folder / "new"
    dedupindex("manifest", old, "-o", manifest)
    planned, _ = dedupindex("resolve", manifest, "-o", plan, "--json", *options)
    done, _ = dedupindex("rewrite", plan, "--out", new, "--json")
    assert list(Against(old, [new]).findings()) == []
    return Deduplicated(new, json.loads(planned), json.loads(done))


def archives(folder: Path) -> list[Path]:
    """The WARCs below a folder."""
    found = [path for path in folder.rglob("*.warc*") if path.is_file()]
    return sorted(path for path in found if ".rewrite" not in path.parts)


def remarks(*places: Path) -> Counter[str]:
    """What ``bin/verify`` remarks on a collection, by reason; nothing worse."""
    found = list(Collection(places).findings())
    worse = [finding for finding in found if REASONS[finding.reason] != REMARK]
    assert worse == []
    return Counter(finding.reason for finding in found)


def verdicts(old: Path, new: Path) -> int:
    """Other readers find nothing new in the new files; return the number of records."""
    count = 0
    for path in archives(new):
        before = old / path.relative_to(new)
        assert warcio(path) <= warcio(before)
        kinds, wrong = fastwarc(path)
        was, wrong_before = fastwarc(before)
        assert wrong <= wrong_before
        assert len(kinds) == len(was)
        changed = Counter(pair for pair in zip(was, kinds, strict=True) if pair[0] != pair[1])
        assert set(changed) <= {("response", "revisit")}
        count += len(kinds)
        assert jwarc(path) <= jwarc(before)
    return count


def warcio(path: Path) -> set[str]:
    """The record ids that ``warcio check`` complains of."""
    done = subprocess.run(
        [sys.executable, "-m", "warcio.cli", "check", str(path)], capture_output=True, text=True
    )
    found = {line.split()[3] for line in done.stdout.splitlines() if "WARC-Record-ID" in line}
    assert done.returncode == bool(found), done.stdout + done.stderr
    assert "exception" not in done.stdout
    return found


def fastwarc(path: Path) -> tuple[list[str], set[str]]:
    """The types of all records, and the ids of those whose digests FastWARC finds wrong."""
    kinds, wrong = [], set()
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream, parse_http=False):
            kinds.append(record.headers["WARC-Type"])
            record.freeze()
            if "WARC-Block-Digest" in record.headers and not record.verify_block_digest():
                wrong.add(record.record_id)
            if record.record_type == WarcRecordType.response:
                record.parse_http()
                payload = "WARC-Payload-Digest" in record.headers
                if payload and not record.verify_payload_digest():
                    wrong.add(record.record_id)
    return kinds, wrong


def jwarc(path: Path) -> set[str]:
    """What ``jwarc validate`` finds wrong. It takes all digests of chunked bodies of the entity."""
    words = ["java", "-XX:TieredStopAtLevel=1", "-jar", jar(JWARC), "validate", path]
    done = subprocess.run(words, capture_output=True, text=True)
    said = {line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line}
    assert bool(said) == bool(done.returncode), done.stdout + done.stderr
    return said


def replayed(old: Path, new: Path, folder: Path, *others: Path) -> int:
    """pywb shows every capture of the new files as that of the old; counts our revisits.

    Each is asked for by its own URL and second: status, headers and body must be the same, and
    what became a revisit must be shown of that very second. `others` have originals of elsewhere.
    """
    before = [one for one in records(archives(old)) if one.url.startswith("http")]
    after = {one.record_id: one for one in records(archives(new))}
    made = {one.record_id for one in before if one.type != after[one.record_id].type}
    answers = []
    for place in (old, new):
        home = folder / f"pywb-{len(answers)}"
        home.mkdir()
        with replay([*archives(place), *others], home) as archive:
            answers.append([archive.whole(one.url, one.date) for one in before])
    for one, was, now in zip(before, *answers, strict=True):
        assert now == was, one
        if one.record_id in made:
            assert one.status == str(now.status) and now.body, one
            said = parsedate_to_datetime(dict(now.headers)["Memento-Datetime"])
            assert f"{said:%Y-%m-%dT%H:%M:%SZ}" == second(one.date), one
    return len(made)


def proved(old: Path, folder: Path) -> int:
    """All of the above; counts the revisits that were made."""
    result = deduplicated(old, folder)
    assert remarks(result.folder) == remarks(old)
    verdicts(old, result.folder)
    revisits: int = result.done["revisits"]
    assert replayed(old, result.folder, folder) == revisits
    return revisits
