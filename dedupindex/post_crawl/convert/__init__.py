"""Convert ARC files to WARC files from which they can be reproduced bit for bit."""
