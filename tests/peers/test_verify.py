"""``bin/verify`` on files of other tools: crawlers pass, losses of a deduplicator are reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dedupindex.verify.collection import Collection
from dedupindex.verify.compare_collections import Against
from dedupindex.verify.issues import REASONS, REMARK
from tests.peers.site import PAGES, site
from tests.peers.test_jwarc import harvest, jwarc
from tests.peers.test_wget_dedup import harvest as wget
from tests.support.verifying import reasons
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer


def test_jwarc(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    port = int(harvest(old, "one").rpartition(":")[2])
    harvest(old, "two", port=port)
    fetched = Collection([old])
    levels = {REASONS[finding.reason] for finding in fetched.findings()}
    assert levels <= {REMARK} and fetched.records > 2 * len(PAGES)
    shutil.copytree(old, new)
    names = ["one.warc.gz", "two.warc.gz"]
    jwarc("dedupe", "-j", "1", "--cache-size", "1000", *names, folder=new)
    for name in names:
        (new / name.replace(".warc", "-dedup.warc")).replace(new / name)
    rewritten = Collection([new])
    assert {REASONS[finding.reason] for finding in rewritten.findings()} <= {REMARK}
    assert rewritten.revisits
    found = list(Against(old, [new]).findings())
    assert {"id-changed", "field-lost", "not-truncated"} <= reasons(found)
    assert not {"not-rebuilt", "headers-changed", "record-missing", "original-missing"} & reasons(
        found
    )
    changed = [finding for finding in found if finding.reason == "id-changed"]
    assert len(changed) == rewritten.revisits


def test_wget(tmp_path: Path) -> None:
    """Its revisits name their originals by record id alone, which replay tools do not follow.

    And their block digests are those of nothing.
    """
    with site() as base:
        urls = [base + path for path in PAGES]
        wget(tmp_path, "one", urls)
        dedupindex("index", "-w", "-m", ".*", tmp_path / "one.warc.gz", tmp_path / "index")
        dedupindex("export", "--wget", tmp_path / "index", "--out", tmp_path / "dedup.cdx")
        wget(tmp_path, "two", urls, f"--warc-dedup={tmp_path / 'dedup.cdx'}")
    whole = Collection([tmp_path / "one.warc.gz", tmp_path / "two.warc.gz"])
    missing = {"no-refers-to-uri", "no-refers-to-date", "empty-block-digest"}
    twins = {"same-second"}  # where both harvests fetched a page within one second
    assert reasons(list(whole.findings())) - twins == missing
    assert whole.revisits == len(PAGES)
    alone = Collection([tmp_path / "two.warc.gz"])
    assert reasons(list(alone.findings())) == missing | {"dangling"}
    originals = Collection([tmp_path / "two.warc.gz"], [tmp_path / "one.warc.gz"])
    assert reasons(list(originals.findings())) - twins == missing
