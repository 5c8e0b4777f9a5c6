"""One deduplication index for every crawler of a web archive, and for its archive."""

__version__ = "0.1.0"
