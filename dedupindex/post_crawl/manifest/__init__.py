"""The manifest, first stage after a crawl: a line for each response of WARC and ARC files."""
