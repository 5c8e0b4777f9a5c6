"""Sources in stores and on web servers: the same captures as of files, or a clear refusal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex import object_store as remote
from dedupindex.capture import Capture
from dedupindex.cli import main
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, BadSource, ContainerChanged, StoreUnavailable
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.indexer.pipeline import Build, Built, build
from dedupindex.object_store import RemoteFile, read_object, stores
from dedupindex.post_crawl.manifest.make_manifest import make
from dedupindex.post_crawl.manifest.parquet import open_manifest
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.plan.compare_payloads import Compare
from dedupindex.post_crawl.plan.make_plan import ResolveOptions, resolve
from dedupindex.sources import expand
from dedupindex.sources.warc_files import find
from tests.support.ports import refusing_port
from tests.support.stores import Bucket, Fault, web
from tests.support.warc_cases import gz, request, response
from tests.unit.sources.test_wacz import wacz

EVERYTHING = Settings(mime=".*", whitelist=True)
AWAY = r"onnect.*\(tried 2 times\)"


def archive(
    first: int, count: int, *, size: int = 3000, pack: Callable[[bytes], bytes] = gz
) -> bytes:
    """A WARC of responses, of which some have the payload of others."""
    members = []
    for number in range(first, first + count):
        body = b"%d " % (number % 7) * (size + number % 7)
        members.append(pack(request(number=2 * number)))
        members.append(
            pack(response(body, number=2 * number + 1, Target_URI=b"http://a.test/%d" % number))
        )
    return b"".join(members)


NOISE = os.urandom(3 << 20)  # does not become less by gzip
LONG = archive(0, 20) + gz(response(NOISE, number=100)) + archive(40, 20)


@pytest.fixture
def bucket(buckets: Callable[[], Bucket]) -> Bucket:
    return buckets()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait."""
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.0)


def built(index: Path, *sources: str, **more: Any) -> Built:
    return build(Build(list(sources), index, EVERYTHING, **more))


def captures(index: Path, before: str) -> list[tuple[Digest, Capture]]:
    """All captures; of their containers what follows `before`."""
    with closing(open_index(index)) as engine, engine.view() as view:
        assert engine.check() == []
        return sorted(
            (digest, capture._replace(container=capture.container.removeprefix(before)))
            for digest, capture in view.captures()
        )


def containers(index: Path) -> dict[str, str]:
    """The content hashes of all containers, by name."""
    with closing(open_index(index)) as engine, engine.view() as view:
        return {one.name: one.content_hash for one in view.containers()}


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Files of several kinds, as a crawl leaves them."""
    folder = tmp_path / "crawl"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.warc.gz").write_bytes(LONG)
    (folder / "deep" / "b.warc").write_bytes(response(b"plain", number=7))
    wacz(folder / "c.wacz", {"datapackage.json": b"{}", "archive/d.warc.gz": archive(0, 30)})
    (folder / "notes.txt").write_bytes(b"no source\n")
    (folder / ".hidden.warc").write_bytes(response(b"hidden"))
    (folder / "e.warc.gz.open").write_bytes(archive(3, 1))
    return folder


def put_all(bucket: Bucket, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put(f"crawl/{path.relative_to(folder)}", path.read_bytes(), part=5 << 20)


def test_a_bucket_gives_the_index_of_a_folder(
    tmp_path: Path, collection: Path, bucket: Bucket
) -> None:
    put_all(bucket, collection)
    here = built(tmp_path / "here", str(collection))
    there = built(tmp_path / "there", f"{bucket.url}/crawl", jobs=2)
    assert there.tally.records == here.tally.records > 100
    assert there.skipped == here.skipped == 2
    assert captures(tmp_path / "there", f"{bucket.url}/crawl/") == captures(
        tmp_path / "here", f"{collection}/"
    )
    hashes = {f"{bucket.url}/crawl/{Path(name).relative_to(collection)}": value
              for name, value in containers(tmp_path / "here").items()}  # fmt: skip
    assert containers(tmp_path / "there") == hashes


def test_hidden_directories_are_left_out_unless_they_are_named(
    tmp_path: Path, bucket: Bucket
) -> None:
    for name in ("x/a.warc", "x/.old/b.warc", ".o/c/d.warc", "deep/x/e.warc"):
        bucket.put(f"crawl/{name}", response(name.encode()))
    for pattern, names in {
        "": ["deep/x/e.warc", "x/a.warc"],
        "/*/*.warc": ["x/a.warc"],
        "/*/*/?.warc": ["deep/x/e.warc"],
        "/**/*.warc": ["deep/x/e.warc", "x/a.warc"],
        "/x/.o*/*.warc": ["x/.old/b.warc"],
        "/.o": [".o/c/d.warc"],
    }.items():
        address = f"{bucket.url}/crawl"
        found = expand([address + pattern]).paths
        assert sorted(path.removeprefix(f"{address}/") for path in found) == names, pattern


def test_a_glob_and_a_web_server(tmp_path: Path, collection: Path, bucket: Bucket) -> None:
    put_all(bucket, collection)
    built(tmp_path / "here", f"file://{collection}/*.w*")
    built(tmp_path / "there", f"{bucket.url}/crawl/*.w*")
    expected = captures(tmp_path / "here", f"{collection}/")
    assert captures(tmp_path / "there", f"{bucket.url}/crawl/") == expected
    for ranges in (True, False):
        with web(collection, ranges=ranges) as server:
            index = tmp_path / f"web-{ranges}"
            built(index, f"{server.url}/*.w*")
            assert captures(index, f"{server.url}/") == expected
            built(tmp_path / f"all-{ranges}", f"{server.url}/")
            assert len(containers(tmp_path / f"all-{ranges}")) == 3


def test_only_the_needed_parts_of_a_wacz_are_read(tmp_path: Path, bucket: Bucket) -> None:
    packed = io.BytesIO()
    with ZipFile(packed, "w") as container:
        container.writestr("archive/a.warc.gz", archive(0, 3))
        container.writestr("other", NOISE)
    bucket.put("big.wacz", packed.getvalue())
    found = remote.find_objects(bucket.url)
    with RemoteFile(next(found).address) as file, ZipFile(file) as container:
        assert container.read("archive/a.warc.gz") == archive(0, 3)
    fetched = [request for request in bucket.server.requests if request[0] == "GET" and request[2]]
    assert sum(_length(request[2]) for request in fetched) < 4 * read_object.LEAST


def _length(span: str) -> int:
    begin, end = span.removeprefix("bytes=").split("-")
    return int(end) - int(begin) + 1


def test_objects_are_recognised_by_etag_and_refused_if_changed(
    tmp_path: Path, bucket: Bucket
) -> None:
    address = bucket.put("a.warc.gz", LONG)
    index = tmp_path / "index"
    assert built(index, address).tally.containers == 1
    bucket.server.requests.clear()
    assert built(index, address).tally.known == 1
    assert not [request for request in bucket.server.requests if request[0] == "GET"]
    bucket.put("a.warc.gz", LONG, part=5 << 20)  # the same bytes, another ETag
    assert built(index, address).tally.known == 1
    bucket.put("a.warc.gz", archive(0, 5))
    with pytest.raises(ContainerChanged, match="a.warc.gz was indexed before with other content"):
        built(index, address)
    assert built(index, address, replace=True).tally.containers == 1


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("a.warc.gz", 3, status=503)],
        [Fault("a.warc.gz", 2, status=503, method="HEAD")],
        [Fault("a.warc.gz", 3, cut=100)],
        [Fault("a.warc.gz", 9, cut=50_000)],
        [Fault("a.warc.gz", 4, short=70_000)],
        [Fault("a.warc.gz", 1, cut=0), Fault("a.warc.gz", 1, status=500)],
    ],
)
def test_transient_failures_are_retried(
    tmp_path: Path, bucket: Bucket, faults: list[Fault]
) -> None:
    address = bucket.put("a.warc.gz", LONG)
    bucket.server.faults += faults
    with RemoteFile(address) as file:
        assert file.read() == LONG
    assert not any(fault.times for fault in faults)
    (tmp_path / "a.warc.gz").write_bytes(LONG)
    with web(tmp_path) as server:
        server.faults += [Fault(one.ending, 2, one.status, one.cut, one.short) for one in faults]
        with RemoteFile(f"{server.url}/a.warc.gz") as file:
            assert file.read() == LONG


def test_number_of_retries_is_limited(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stores.TRIES, "3")
    address = bucket.put("a.warc.gz", LONG)
    index = tmp_path / "index"
    forever = Fault("a.warc.gz", 10**9, cut=0)
    bucket.server.faults.append(forever)
    with pytest.raises(StoreUnavailable, match="a.warc.gz cannot be read"):
        built(index, address)
    assert not index.exists()
    assert 10**9 - forever.times <= 3
    monkeypatch.setenv(stores.TRIES, "none")
    with pytest.raises(BadInput, match="DEDUPINDEX_REMOTE_TRIES"):
        built(index, address)


def test_a_package_that_fails_on_an_error_does_not_make_it_last() -> None:
    """As s3fs, which takes the first argument of a timeout: that has none."""
    with pytest.raises(IndexError) as raised:
        try:
            raise TimeoutError
        except TimeoutError as silent:
            assert silent.args[0]
    assert not stores.is_lasting(raised.value)
    failed = stores.given_up("a.warc.gz cannot be read", raised.value, 5)
    assert isinstance(failed, StoreUnavailable)
    assert stores.error_text(raised.value) == "TimeoutError"
    assert stores.is_lasting(IndexError("tuple index out of range"))


def test_partial_objects_are_detected(tmp_path: Path) -> None:
    """A server without ranges, whose answers are cut, or said to be shorter than they are."""
    (tmp_path / "a.warc.gz").write_bytes(LONG)
    for fault in (Fault("gz", 10**9, cut=200_000), Fault("gz", 10**9, short=200_000)):
        with web(tmp_path, ranges=False) as server:
            server.faults.append(fault)
            with pytest.raises(StoreUnavailable, match="cannot be read"):
                built(tmp_path / "index", f"{server.url}/a.warc.gz")
            assert not (tmp_path / "index").exists()
    with (
        web(tmp_path, sized=False) as server,
        pytest.raises(BadSource, match="does not state its size"),
    ):
        built(tmp_path / "index", f"{server.url}/a.warc.gz")


@pytest.mark.parametrize("name", ["a.warc.gz", "a.cdx"])
def test_changed_object_is_refused(tmp_path: Path, bucket: Bucket, name: str) -> None:
    line = "- 20261101091417 http://a.test/ image/png 200 {} - - 500 {} d.warc.gz\n"
    lines = [line.format("A" * 31 + "B", number) for number in range(40_000)]
    text = "".join([" CDX N b a m s k r M S V g\n", *lines])
    data = LONG if name == "a.warc.gz" else text.encode()
    other = data[:-1] + b"x"
    kept = tmp_path / "kept.warc"  # alone, a changed object makes no index
    kept.write_bytes(response(b"plain", number=7))
    for where in ("s3", "http"):
        if where == "s3":
            address = bucket.put(name, data)
            bucket.server.faults.append(Fault(name, 1, then=partial(bucket.put, name, other)))
            result = built(tmp_path / where, address, str(kept))
        else:
            (tmp_path / name).write_bytes(data)
            with web(tmp_path) as server:
                change = partial((tmp_path / name).write_bytes, other)
                server.faults.append(Fault(name, 1, then=change))
                result = built(tmp_path / where, f"{server.url}/{name}", str(kept))
        assert "still being written" in result.problems[-1].message
        assert [one.container for _, one in captures(tmp_path / where, "")] == [str(kept)]
        assert list(containers(tmp_path / where)) == [str(kept)]


def test_server_error_does_not_mean_missing(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.warc.gz").write_bytes(archive(0, 5))
    with web(tmp_path) as server:
        address = f"{server.url}/a.warc.gz"
        before = remote.facts(address)
        server.faults += [Fault("gz", 3, status=503, method=method) for method in ("HEAD", "GET")]
        assert remote.facts(address) == before
        monkeypatch.setenv(stores.TRIES, "2")
        server.faults += [Fault("gz", 99, status=503, method=method) for method in ("HEAD", "GET")]
        with pytest.raises(StoreUnavailable, match="503"):
            remote.facts_or_none(address)
        server.faults.clear()
        (tmp_path / "a.warc.gz").unlink()
        assert remote.facts_or_none(address) is None
    with (
        refusing_port() as port,
        pytest.raises(StoreUnavailable, match=AWAY),
    ):
        remote.facts_or_none(f"http://127.0.0.1:{port}/a.warc.gz")
    address = bucket.put("a.warc.gz", LONG)
    bucket.server.faults.append(Fault("gz", 99, status=503, method="HEAD"))
    with pytest.raises(StoreUnavailable):
        remote.facts_or_none(address)


def test_a_range_is_one_request_for_the_version_whose_facts_are_known(bucket: Bucket) -> None:
    address = bucket.put("noise", bytes(1000))
    known = remote.facts(address)
    bucket.server.requests.clear()
    with RemoteFile(address, known) as file:
        assert file.range(5, 9) == bytes(5)
        assert [method for method, *_ in bucket.server.requests] == ["GET"]
        bucket.put("noise", b"1" * 1000)
        assert file.range(5, 9) == b"" and file.changed()
    with RemoteFile(address, known) as file:  # it was replaced before the first range
        assert file.range(5, 9) == b"" and file.changed()


@pytest.mark.parametrize("glob", ["", "*.warc", "**/*.warc"])
def test_a_page_that_cannot_be_read_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glob: str
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.warc").write_bytes(response(b"a"))
    (tmp_path / "deep" / "b.warc").write_bytes(response(b"b", number=7))
    monkeypatch.setenv(stores.TRIES, "2")
    with web(tmp_path) as server:
        address = f"{server.url}/{glob}"
        everything = len(list(remote.find_objects(address)))
        server.faults.append(Fault("deep", 99, status=404))
        if "**" in address or not glob:
            with pytest.raises(BadSource, match=r"deep cannot be read: nothing is there"):
                list(remote.find_objects(address))
        server.faults.clear()
        server.faults.append(Fault("deep", 1, status=503))
        assert len(list(remote.find_objects(address))) == everything
    with (
        refusing_port() as port,
        pytest.raises(StoreUnavailable, match=AWAY),
    ):
        list(remote.find_objects(f"http://127.0.0.1:{port}/{glob}"))


def test_names_that_look_like_globs(tmp_path: Path, bucket: Bucket) -> None:
    address = bucket.put("a[1]?.warc.gz", archive(0, 3))
    bucket.put("a1x.warc.gz", archive(5, 3))
    built(tmp_path / "index", address)
    assert list(containers(tmp_path / "index")) == [address]
    built(tmp_path / "other", f"{bucket.url}/a[1]?.*")
    assert list(containers(tmp_path / "other")) == [f"{bucket.url}/a1x.warc.gz"]


def test_an_object_whose_name_ends_with_a_slash_is_not_passed_over(
    tmp_path: Path, bucket: Bucket
) -> None:
    bucket.put("crawl/a.warc.gz", archive(0, 3))
    bucket.put("crawl/", b"")  # which only stands for the directory
    assert not built(tmp_path / "index", f"{bucket.url}/crawl").problems
    address = bucket.put("crawl/", archive(5, 3))
    [problem] = built(tmp_path / "other", f"{bucket.url}/crawl").problems
    assert problem.container == address
    assert "ends with a slash" in problem.message


def test_lasting_failures_are_not_retried(bucket: Bucket, tmp_path: Path) -> None:
    for address, message in [
        (f"{bucket.url}/none.warc.gz", "nothing is there"),
        (f"{bucket.url}/none*", "nothing matches"),
        ("s3://somebody:secret@bucket/a", "given with a password"),
        ("nosuch://somewhere/a.warc", "nosuch://somewhere/a.warc"),
        ("S3://bucket/a.warc", r"S3://bucket/a.warc: did you mean s3://bucket/a.warc\?"),
        ("s3:/bucket/a.warc", r"s3:/bucket/a.warc does not exist: did you mean s3://bucket/a"),
    ]:
        with pytest.raises(BadSource, match=message) as caught:
            built(tmp_path / "index", address)
        assert "secret" not in str(caught.value)


def test_a_store_that_asks_for_fewer_requests(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stores.TRIES, "2")
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    code = "<Code>SlowDown</Code><Message>Please reduce your request rate.</Message>"
    body = f'<?xml version="1.0"?><Error>{code}</Error>'.encode()
    address = bucket.put("one.warc.gz", LONG)
    known = remote.facts(address)
    bucket.server.faults.append(Fault("gz", 99, status=503, body=body))
    with (
        remote.RemoteFile(address, known) as file,
        pytest.raises(StoreUnavailable) as caught,
    ):
        file.read(10)
    assert str(caught.value) == (
        f"{address} cannot be read: Please reduce your request rate (status 503 SlowDown) (tried 2 "
        "times); the store is overloaded or asks for fewer requests: run the same command again, a "
        "build of an index with --resume, and with fewer --jobs or cores"
    )
    bucket.server.faults[:] = [Fault("gz", 99, status=503, method="HEAD")]
    with pytest.raises(StoreUnavailable, match=r"\(status 503\).* with fewer --jobs"):
        remote.facts(address)


@pytest.mark.parametrize("key", ["one.warc.gz", "folder/", "*.warc.gz"])
def test_a_bucket_that_is_not_there_ends_a_run_at_once(bucket: Bucket, key: str) -> None:
    """On a machine that asks another store, say, which the message names."""
    bucket.server.requests.clear()
    wrong = f"does not exist, on {gethostname()}: .*AWS_ENDPOINT_URL"
    with pytest.raises(StoreUnavailable, match=wrong):
        remote.facts(f"s3://none-of-ours/{key}")
    assert len(bucket.server.requests) == 2
    with pytest.raises(StoreUnavailable, match=wrong):
        list(remote.find_objects(f"s3://none-of-ours/{key}"))
    assert len(bucket.server.requests) <= 4


def test_a_wrong_name_of_a_bucket_or_of_an_object_is_named(bucket: Bucket) -> None:
    for key in ("one.warc.gz", "folder/"):
        with pytest.raises(BadSource, match='cannot be read: Invalid bucket name "a bucket"$'):
            list(remote.find_objects(f"s3://a bucket/{key}"))
        with pytest.raises(BadSource, match=f"are bucket {bucket.name} and key {key} right"):
            list(remote.find_objects(f"{bucket.url}/{key}"))


def test_signatures_are_neither_kept_nor_shown(tmp_path: Path) -> None:
    (tmp_path / "a.warc.gz").write_bytes(archive(0, 5))
    with web(tmp_path) as server:
        signed = f"{server.url}/a.warc.gz?X-Amz-Credential=me&X-Amz-Signature=unspeakable"
        built(tmp_path / "index", signed)
        assert list(containers(tmp_path / "index")) == [f"{server.url}/a.warc.gz"]
        again = signed.replace("unspeakable", "renewed")
        assert built(tmp_path / "index", again, add=True).tally.known == 1
        with pytest.raises(BadSource, match="signature in it") as caught:
            find([signed])
        assert "unspeakable" not in str(caught.value)
        with pytest.raises(BadSource) as caught:
            remote.facts(signed.replace("a.warc", "b.warc"))
        assert "unspeakable" not in str(caught.value)
        server.faults.append(Fault("a.warc.gz", 10**9, status=403))
        with RemoteFile(signed) as file, pytest.raises(BadSource) as caught:
            file.read()
        assert "403" in str(caught.value)
        assert "unspeakable" not in str(caught.value)
    index = tmp_path / "index"
    kept = b"".join(path.read_bytes() for path in index.rglob("*") if path.is_file())
    assert b"unspeakable" not in kept and b"renewed" not in kept and b"X-Amz" not in kept


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://a/x?file=monkey.warc.gz", "https://a/x?file=monkey.warc.gz"),
        ("https://a/x?design=1&page=2", "https://a/x?design=1&page=2"),
        ("https://a/x?file=b&X-Amz-Date=1&X-Amz-Signature=2", "https://a/x?file=b"),
        ("https://a/x?sv=1&sr=b&sp=r&se=2026&sig=2", "https://a/x"),
        ("https://a/x?AWSAccessKeyId=1&Expires=2&Signature=3&id=7", "https://a/x?id=7"),
        ("https://a/x?access_token=1&api_key=2", "https://a/x"),
        ("s3://bucket/key?versionId=3", "s3://bucket/key?versionId=3"),
    ],
)
def test_only_signatures_are_removed_from_addresses(address: str, kept: str) -> None:
    assert remote.redacted(address) == kept


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(BadSource, match="bin/setup remote"):
        built(tmp_path / "index", "s3://bucket/a.warc.gz")


def test_manifest_and_plan_of_remote_objects(
    tmp_path: Path, collection: Path, bucket: Bucket
) -> None:
    put_all(bucket, collection)
    there = f"{bucket.url}/crawl"
    for name, source in (("here", str(collection)), ("there", there)):
        made = make([source], tmp_path / name, ManifestOptions())
        assert (made.files, made.known) == (2, 0)
    lines = {
        name: {
            place.name: list(manifest.lines(place.number))
            for place in manifest.containers().values()
        }
        for name in ("here", "there")
        for manifest in [open_manifest(tmp_path / name)]
    }
    assert lines["there"] == lines["here"]
    assert make([there], tmp_path / "there", ManifestOptions()).known == 2
    totals = [
        resolve(
            [tmp_path / name], tmp_path / f"{name}.plan", ResolveOptions(compare=Compare(-1))
        ).totals
        for name in ("here", "there")
    ]
    assert totals[1].compared.pop("remote") == totals[0].compared.pop("local") > 0
    assert totals[0] == totals[1]
    assert totals[0].copies > 10
    bucket.put("crawl/deep/b.warc", response(b"another", number=7))
    made = make([there], tmp_path / "there", ManifestOptions())
    assert (made.files, made.known, made.gone) == (1, 1, 1)


def test_processes_are_spawned_if_fsspec_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock held by a thread at the time of a fork is never released in the child."""

    def refuse() -> int:
        raise AssertionError("forked")

    (tmp_path / "crawl").mkdir()
    for number in range(3):
        (tmp_path / "crawl" / f"{number}.warc").write_bytes(archive(10 * number, 6))
    monkeypatch.setattr("os.fork", refuse)
    with web(tmp_path / "crawl") as server:
        for name, source, jobs in (
            ("there", f"{server.url}/", 2),
            ("here", f"{tmp_path}/crawl", 1),
        ):
            assert built(tmp_path / name, source, jobs=jobs).tally.added == 18
            made = make([source], tmp_path / f"{name}.manifest", ManifestOptions(), jobs=jobs)
            assert (made.files, made.lines) == (3, 18)
        assert captures(tmp_path / "there", f"{server.url}/") == captures(
            tmp_path / "here", f"{tmp_path}/crawl/"
        )


@pytest.mark.parametrize(
    "words",
    [
        "rewrite {there} --out out", "undedup . --out {there}", "rewrite p --out {there}",
        "convert . --out {there}", "dedup . --out {there}", "dedup . --out o --work {there}",
        "manifest . -o {there}", "resolve {there} -o plan", "resolve m -o {there}",
        "index . {there}", "index {there} {there}", "lookup {there}", "serve {there}",
        "run_pipeline . {there}",
        "export --self-contained . -o {there}", "rehearse . --work {there}",
    ],
)  # fmt: skip
def test_address_is_refused_where_a_path_is_needed(
    words: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no directory "s3:" is made."""
    monkeypatch.chdir(tmp_path)
    there = "https://me:SECRET@store.example.org/crawl?password=SECRET"
    assert main(words.format(there=there).split()) == BadSource.exit_status
    output = capsys.readouterr().err
    assert "https://store.example.org/crawl" in output
    assert "download" in output or "write to a directory" in output
    assert "SECRET" not in output
    assert list(tmp_path.iterdir()) == []


def test_last_argument_may_be_an_address(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a source: a path would have lost a slash."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(stores.TRIES, "1")
    monkeypatch.setattr("dedupindex.index.refer_to", lambda home, address: None)
    with web(tmp_path) as server:
        words = ["index", f"{server.url}/none.warc", "--engine", "cassandra://127.0.0.1:1/k"]
        assert main(words) == BadSource.exit_status
    output = capsys.readouterr().err
    assert f"{server.url}/none.warc cannot be read: nothing is there" in output


@given(
    st.integers(0, 5000),
    st.lists(st.tuples(st.integers(0, 5200), st.integers(0, 900)), max_size=30),
)
def test_reading_anywhere(size: int, reads: list[tuple[int, int]]) -> None:
    """Blocks give the bytes of the object for any ranges in any order."""
    data = bytes(number * 7 % 251 for number in range(size))
    fetched: list[int] = []

    def fetch(offset: int, length: int) -> bytes:
        fetched.append(length)
        return data[offset : offset + length]

    blocks = read_object._Blocks(fetch, least=16, most=256)
    with closing(blocks):
        for begin, count in [*reads, *((at, 100) for at in range(0, size, 100))]:
            got = b""
            while len(got) < count and (piece := blocks.at(begin + len(got), size)):
                got += piece[: count - len(got)]
            assert got == data[begin : begin + count]
    assert max(fetched, default=0) <= 256
