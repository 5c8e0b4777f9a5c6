"""The admission filters that belong to the settings an index was built with."""

from __future__ import annotations

from functools import lru_cache

from dedupindex.build.admission import Judge, make_judge
from dedupindex.index.identity import Settings


@lru_cache(16)
def admission_filter(settings: Settings) -> Judge:
    """Return the filter that decides which captures an index with these settings takes."""
    return make_judge(
        mime=settings.mime,
        whitelist=settings.whitelist,
        status=settings.status,
        min_size=settings.min_size,
    )
