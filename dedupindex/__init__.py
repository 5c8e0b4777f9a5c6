"""Deduplicate web archives: an index of payloads, to ask during a crawl and after it.

    import dedupindex

    dedupindex.build("warcs", "my-index", mime=".*", whitelist=True)
    with dedupindex.open("my-index") as index:
        result = index.lookup("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "http://example.com/")
        if result:
            print(result.original.url, result.original.date)

The names in ``__all__``, ``dedupindex.client`` and ``dedupindex.errors`` are the public API
(docs/library.md). Everything else is internal and may change with every version.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedupindex.api import Index, LookupResult, open
    from dedupindex.capture import Capture
    from dedupindex.corpus import Corpus
    from dedupindex.digest import Digest
    from dedupindex.indexer.pipeline import Built
    from dedupindex.indexer.pipeline import build_index as build
    from dedupindex.lookup.decide import Strategy

__version__ = "0.1.0"
__all__ = [
    "Built",
    "Capture",
    "Corpus",
    "Digest",
    "Index",
    "LookupResult",
    "Strategy",
    "build",
    "open",
]

_HOMES = {
    "Built": "indexer.pipeline.Built",
    "Capture": "capture.Capture",
    "Corpus": "corpus.Corpus",
    "Digest": "digest.Digest",
    "Index": "api.Index",
    "LookupResult": "api.LookupResult",
    "Strategy": "lookup.decide.Strategy",
    "build": "indexer.pipeline.build_index",
    "open": "api.open",
}


def __getattr__(name: str) -> Any:
    """Import a name of the public API on first use; commands need few of them."""
    if name in ("client", "errors"):
        return import_module(f"dedupindex.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].rpartition(".")
    globals()[name] = value = getattr(import_module(f"dedupindex.{module}"), attribute)
    return value
