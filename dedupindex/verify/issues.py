"""The reasons of findings, and their levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DAMAGE = "damage"  # bytes that cannot be read as what they must be
LOSS = "loss"  # content is gone, or is no longer what was captured
BROKEN = "broken"  # content is there, but some replay tool will not show it
REMARK = "remark"  # against the standard or unusual; replays all the same
LEVELS = (DAMAGE, LOSS, BROKEN, REMARK)
Issue = tuple[str, str]  # reason, message


def level_words(levels: Mapping[str, int]) -> list[str]:
    """Return the counts of findings in words, the worst first: 2 findings of loss, 1 remark."""
    found = []
    for level in LEVELS:
        if count := levels.get(level, 0):
            many = "s" * (count > 1)
            of = "broken replay" if level == BROKEN else level
            found.append(
                f"{count:,} " + (f"remark{many}" if level == REMARK else f"finding{many} of {of}")
            )
    return found


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


# Reasons by level; docs/verify.md explains them.
_REASONS = {
    DAMAGE: (
        "unreadable damaged-member no-dictionary not-a-member misframed bad-length bad-header"
    ),
    LOSS: (
        "block-digest empty-block cut-digest self-reference dangling wrong-digest "
        "file-missing record-missing record-extra record-changed recompressed bytes-changed "
        "original-missing original-damaged not-rebuilt headers-changed id-changed date-changed "
        "uri-changed field-lost field-changed version-changed"
    ),
    BROKEN: (
        "payload-digest no-target-uri bad-date no-profile unknown-profile no-payload-digest "
        "runs-on empty-digest no-refers-to-uri no-refers-to-date refers-to-brackets chained "
        "wrong-date misdirected digest-spelling coding claimed-length unusable-original "
        "invalid-replacement"
    ),
    REMARK: (
        "no-record-id duplicate-record-id repeated-field unknown-version not-exact "
        "digest-not-checked empty-block-digest profile-version no-refers-to not-truncated "
        "no-http-headers http-headers body-kept redirect wrong-record-id later-original "
        "date-spelling status ambiguous-original same-second partial file-extra digest-form "
        "field-added larger no-content-size no-checksum large-window"
    ),
}
REASONS = {reason: level for level, names in _REASONS.items() for reason in names.split()}
