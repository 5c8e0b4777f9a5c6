"""What the index that is served takes for an original, by the settings that it was built with."""

from __future__ import annotations

from dedupindex.build.admission import Judge, make_judge
from dedupindex.index.identity import Settings


class Judges:
    """Makes the judge of settings once."""

    def __init__(self) -> None:
        self._made: dict[Settings, Judge] = {}

    def of(self, settings: Settings) -> Judge:
        """The judge of an index with these settings."""
        judge = self._made.get(settings)
        if judge is None:
            judge = self._made[settings] = make_judge(
                mime=settings.mime,
                whitelist=settings.whitelist,
                status=settings.status,
                min_size=settings.min_size,
            )
        return judge
