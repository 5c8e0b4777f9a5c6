"""What is asked for soon, told to a view that would else wait for each: see `look_ahead`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from dedupindex.digest import Digest
from dedupindex.errors import DedupError
from dedupindex.lookup.params import UnknownAlgorithm, of_json, query_of


def digests_of(asked: Iterable[Any], given: Mapping[str, bytes]) -> Iterator[Digest]:
    """The digests of lookups, JSON objects, that can be understood; `given` holds for each."""
    for one in asked:
        with suppress(DedupError, UnknownAlgorithm, AttributeError):
            yield query_of({**given, **of_json(one)})[0].digest
