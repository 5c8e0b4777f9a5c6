"""The admission filters that belong to the settings an index was built with."""

from __future__ import annotations

from dedupindex.build.admission import Judge, make_judge
from dedupindex.index.identity import Settings

_filters: dict[Settings, Judge] = {}  # one, unless the index is replaced


def admission_filter(settings: Settings) -> Judge:
    """Return the filter that decides which captures an index with these settings takes."""
    found = _filters.get(settings)
    if found is None:
        found = _filters[settings] = make_judge(
            mime=settings.mime,
            whitelist=settings.whitelist,
            status=settings.status,
            min_size=settings.min_size,
        )
    return found
