"""All stages after a crawl in one run: manifest, plan, rewriting, and the proof of it."""
