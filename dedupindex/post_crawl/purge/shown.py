"""What a survey found, as JSON."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

from dedupindex.lookup.render_json import original_as_json, url_as_json
from dedupindex.post_crawl.purge.impact import Depending, Going
from dedupindex.post_crawl.purge.remove import PurgeSurvey
from dedupindex.runtime.bounded_counter import Sums

LISTED = 1000  # containers and crawls
_NAMED = 5  # crawls, in a sentence


def impact_as_json(found: PurgeSurvey) -> dict[str, Any]:
    """The counts; of containers and crawls with dependents those with the most."""
    impact = found.impact
    return {
        "originals": asdict(impact.originals),
        **{name: asdict(amount) for name, amount in impact.left.items()},
        "copies": asdict(impact.copies),
        "live": found.live,
        "dependents": asdict(impact.dependents),
        "broken": asdict(impact.broken),
        "by_container": _rows(impact.by_container),
        "by_crawl": _rows(impact.by_crawl),
        "unread": [
            {"crawl": name, "duplicates": count}
            for name, count in islice(_most_first(found.unread), LISTED)
        ],
    }


def unread_as_text(found: PurgeSurvey) -> str:
    """A warning of crawls whose revisits are not known, "" if there are none."""
    crawls = len(found.unread)
    if not crawls:
        return ""
    names = ", ".join(
        f"{name} ({count:,})" for name, count in islice(_most_first(found.unread), _NAMED)
    )
    more = f" and {crawls - _NAMED:,} more" if crawls > _NAMED else ""
    return (
        f"{sum(found.unread.values()):,} lookups of crawls whose WARCs have not all been read were "
        f"answered with originals: {names}{more}. Their revisits are not counted here; read their "
        "WARCs first: bin/index --add --crawl NAME"
    )


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def _rows(sums: Sums) -> list[dict[str, Any]]:
    return [
        {
            "name": name.decode("utf-8", "backslashreplace") or None,
            "dependents": count,
            "bytes": size,
        }
        for name, (count, size) in sums.largest(LISTED, 0)
    ]


def going_as_json(item: Going | Depending) -> dict[str, Any]:
    """An original that goes, or a revisit that depends on one."""
    if isinstance(item, Going):
        becomes = original_as_json(item.becomes) if item.becomes else None
        return {
            "goes": original_as_json(item.capture), "payload": item.left, "becomes": becomes,
        }  # fmt: skip
    one = item.dependent
    return {
        "depends": {
            **url_as_json(one.url),
            "date": one.date.decode(),
            "digest": str(item.digest),
            "container": item.container or None,
            "crawl": item.crawl or None,
            "size": item.size if item.size >= 0 else None,
            "refers_to": {
                **url_as_json(one.names_url),
                "date": one.names_date.decode() or None,
            },
        },
        "payload": item.left,
    }
