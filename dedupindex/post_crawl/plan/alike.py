"""What two payloads must have in common, so that one record may become a revisit of the other."""

from __future__ import annotations

from typing import NamedTuple


class MatchCriteria(NamedTuple):
    """Beyond equal bytes, equal digests as text, and equal Transfer- and Content-Encoding."""

    any_status: bool = False  # a page may be a revisit of the same one with another HTTP status
    same_type: bool = False  # but none of one with another HTTP Content-Type
    other_second: bool = False  # and none of one with its own URL and second

    def columns(self) -> tuple[str, ...]:
        """The columns of a manifest in which two lines must be equal."""
        status = () if self.any_status else ("status",)
        content_type = ("content_type",) if self.same_type else ()
        return ("digest", "strong", "length", "coding", *status, *content_type)
