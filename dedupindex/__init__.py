"""One deduplication index for every crawler of a web archive, and for the archive it already has."""

__version__ = "0.1.0"
