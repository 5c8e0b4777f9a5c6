"""Deduplication after a crawl: manifest, plan, rewriting, verification, undoing."""
