"""How often requests are repeated: by us, by the client of S3, and that all are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from dedupindex.errors import StoreUnavailable
from dedupindex.object_store import RemoteFile, counted_requests, facts, find_objects, stores
from dedupindex.object_store.create_object import create_object
from tests.support.stores import Bucket, Fault


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """What a store does that takes a request and never answers; clients wait 0.2 s."""
    monkeypatch.setenv(stores.TIMEOUT, "0.2")
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    over = Event()
    yield over.wait
    over.set()


def sent(bucket: Bucket, method: str) -> int:
    return [one for one, *_ in bucket.server.requests].count(method)


@pytest.mark.parametrize("tries", [1, 2])
def test_a_silent_store_is_asked_as_often_as_the_limit_says(
    buckets: Callable[[], Bucket], silent: Callable[[], object], tries: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(stores.TRIES, f"{tries}")
    bucket = buckets()
    address = bucket.put("warcs/a.warc.gz", b"content")
    known = facts(address)
    bucket.server.requests.clear()
    bucket.server.faults += [
        Fault("a.warc.gz", 99, method=method, then=silent) for method in ("GET", "HEAD")
    ]
    with counted_requests() as counted:
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            facts(address)
        assert sent(bucket, "HEAD") == tries == counted.totals()["head"]
        with RemoteFile(address, known) as file, pytest.raises(StoreUnavailable):
            file.read()
        assert sent(bucket, "GET") == tries == counted.totals()["get"]


def test_requests_of_an_upload_or_a_listing_are_repeated_by_the_client(
    buckets: Callable[[], Bucket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that fails does not begin the upload again, nor a page the listing."""
    monkeypatch.setenv(stores.TRIES, "1")
    bucket = buckets()
    path = tmp_path / "large"
    path.write_bytes(bytes(20 << 20))
    refusals = [
        Fault("large", 2, 503, method="PUT", query="partNumber=2", lost=True),
        Fault(bucket.name, 2, 503, query="list-type=2.*prefix=new%2F&"),
    ]
    bucket.server.faults += refusals
    with counted_requests() as counted, path.open("rb") as file:
        assert create_object(file, f"{bucket.url}/new/large")
        assert [one.facts.size for one in find_objects(f"{bucket.url}/new/")] == [20 << 20]
        totals = counted.totals()
    assert not any(one.times for one in refusals)
    assert (totals["part"], totals["post"]) == (3 + 2, 2)
    assert totals["list"] == sum("list-type=2" in path for _, path, _ in bucket.server.requests)


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_silence_in_an_upload_or_a_listing_costs_a_repeat_only(
    buckets: Callable[[], Bucket], silent: Callable[[], object], tmp_path: Path, method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(stores.TRIES, "1")
    bucket = buckets()
    path = tmp_path / "small"
    path.write_bytes(b"content")
    bucket.server.faults += [
        Fault("new/small", 1, method="PUT", then=silent, status=503, lost=True),
        Fault(bucket.name, 1, query="list-type=2.*prefix=new%2F&", then=silent),
    ][method == "GET" :][:1]
    with path.open("rb") as file:
        assert create_object(file, f"{bucket.url}/new/small")
    assert [one.facts.size for one in find_objects(f"{bucket.url}/new/")] == [7]
    assert not any(one.times for one in bucket.server.faults)
