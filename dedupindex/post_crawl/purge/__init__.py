"""Remove captures from an index, and show first what depends on them."""
