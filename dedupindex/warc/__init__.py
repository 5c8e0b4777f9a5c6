"""WARC and ARC files as bytes on disk: members, records, HTTP blocks."""
