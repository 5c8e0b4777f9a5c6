"""The manifest, first stage after a crawl: one line for every response of WARC and ARC files."""
