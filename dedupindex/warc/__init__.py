"""Readers of WARC, ARC and WACZ files: gzip members, records, HTTP blocks."""
