"""Why duplicates are not rewritten, in words for reports.

The codes come from the manifest, from the plan, and from the comparison before a record is
replaced. ``docs/stages.md`` has all of them.
"""

from __future__ import annotations

from dedupindex.post_crawl.manifest.parquet import REASONS as OF_RECORDS
from dedupindex.post_crawl.rewrite.result_place import FILE_LEFT

OF_ORIGINAL = "original-"  # prefix of a reason that is the original's
WORDS = {
    **OF_RECORDS,
    "body-differs": "the bodies are not equal",
    "changed": "it is not the record that the plan means",
    "coding-differs": "Transfer-Encoding or Content-Encoding are not equal",
    "control-character": "a control character in the URL or the record id",
    "differs": "the bodies are not equal",
    "digest-differs": "the payload digests are not the same text, and replay tools compare text",
    FILE_LEFT: "its file was left alone",
    "hash-collision": "only a 64-bit hash was equal",
    "indexed": "the index has it, and revisits that are not known may refer to it",
    "no-earlier-original": "only later captures could be its original",
    "no-gain": "the revisit would not be smaller, or not by --min-gain",
    "no-original": "none of the equal captures can be an original",
    "not-a-response": "a record of another type",
    "original-busy": "a process writes to the file of the original",
    "original-changed": "the original is not what the plan means",
    "original-elsewhere": "the original is on another host and cannot be read",
    "original-gone": "the file of the original cannot be opened",
    "original-left-alone": "the file of its original was left alone",
    "original-no-digest": "the original states no payload digest",
    "original-unreadable": "the original cannot be read",
    "protected-original": "it is the original of other captures",
    "referred-to": "a revisit refers to it already",
    "same-record": "it has the record id of its original, as in a copy of a file",
    "same-second": "replay could show another record of its URL and second, such as a cut copy",
    "small": "a body of fewer bytes than --min-size",
    "status-differs": "the original has another status",
    "type-differs": "the original has another Content-Type",
    "unexpected-field": "a response with a field that only a revisit may have",
    "unreadable": "it cannot be read",
    "unused-original": "it could be an original, but each equal capture has a reason to stay",
}


def in_words(reason: str) -> str:
    """Return a reason with what it means.

    >>> in_words("small")
    'small: a body of fewer bytes than --min-size'
    >>> in_words("original-truncated")
    'original-truncated: of the original: cut short by the crawler'
    """
    words = WORDS.get(reason, "")
    if not words and (of_copy := WORDS.get(reason.removeprefix(OF_ORIGINAL))):
        words = f"of the original: {of_copy}"
    return f"{reason}: {words}" if words else reason
