"""The reasons of findings, and their levels."""

from __future__ import annotations

from typing import NamedTuple

DAMAGE = "damage"  # bytes that cannot be read as what they must be
LOSS = "loss"  # content is gone, or is no longer what was captured
BROKEN = "broken"  # content is there, but some replay tool will not show it
REMARK = "remark"  # against the standard or unusual; replays all the same
LEVELS = (DAMAGE, LOSS, BROKEN, REMARK)


class Broken(Exception):
    """A record that cannot be read to its end; `reason` is one of `REASONS`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Finding(NamedTuple):
    """One problem of a record, or of a file (`offset` -1)."""

    reason: str  # a key of `REASONS`
    file: str
    offset: int  # where the member or record begins in the file
    record_id: str  # without brackets, "" if it has none
    message: str

    @property
    def level(self) -> str:
        return REASONS[self.reason]


# Each reason with its level; docs/post-crawl.md explains them.
REASONS = {
    # --- files and records -----------------------------------------------------------------------
    "unreadable": DAMAGE,
    "damaged-member": DAMAGE,
    "not-a-member": DAMAGE,
    "misframed": DAMAGE,
    "bad-length": DAMAGE,
    "bad-header": DAMAGE,
    "block-digest": LOSS,
    "payload-digest": BROKEN,
    "empty-block": LOSS,
    "no-target-uri": BROKEN,
    "bad-date": BROKEN,
    "no-record-id": REMARK,
    "duplicate-record-id": REMARK,
    "repeated-field": REMARK,
    "unknown-version": REMARK,
    "not-exact": REMARK,
    "digest-not-checked": REMARK,
    # --- revisits, alone -------------------------------------------------------------------------
    "empty-block-digest": REMARK,
    "no-profile": BROKEN,
    "unknown-profile": BROKEN,
    "profile-version": REMARK,
    "no-payload-digest": BROKEN,
    "empty-digest": BROKEN,
    "cut-digest": LOSS,
    "no-refers-to-uri": BROKEN,
    "no-refers-to-date": BROKEN,
    "no-refers-to": REMARK,
    "refers-to-brackets": BROKEN,
    "not-truncated": REMARK,
    "no-http-headers": REMARK,
    "http-headers": REMARK,
    "body-kept": REMARK,
    "redirect": REMARK,
    # --- revisits and their originals ------------------------------------------------------------
    "self-reference": LOSS,
    "chained": BROKEN,
    "dangling": LOSS,
    "wrong-date": BROKEN,
    "misdirected": BROKEN,
    "wrong-record-id": REMARK,
    "wrong-digest": LOSS,
    "digest-spelling": BROKEN,
    "forward": REMARK,
    "date-spelling": REMARK,
    "coding": BROKEN,
    "claimed-length": BROKEN,
    "status": REMARK,
    "unfit-original": BROKEN,
    "ambiguous-original": REMARK,
    "same-moment": REMARK,
    "partial": REMARK,
    # --- a file against the one it was made from -------------------------------------------------
    "file-missing": LOSS,
    "file-extra": REMARK,
    "record-missing": LOSS,
    "record-extra": LOSS,
    "record-changed": LOSS,
    "recompressed": LOSS,
    "bytes-changed": LOSS,
    "original-missing": LOSS,
    "not-rebuilt": LOSS,
    "headers-changed": LOSS,
    "id-changed": LOSS,
    "date-changed": LOSS,
    "uri-changed": LOSS,
    "field-lost": LOSS,
    "field-changed": LOSS,
    "version-changed": LOSS,
    "unfit-revisit": BROKEN,
    "digest-form": REMARK,
    "field-added": REMARK,
    "larger": REMARK,
}
