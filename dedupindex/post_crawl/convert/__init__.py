"""ARC files to WARC files that give them back, bit for bit."""
