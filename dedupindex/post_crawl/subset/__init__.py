"""Part of a collection that stands on its own: what is wanted, and the originals that it needs."""
