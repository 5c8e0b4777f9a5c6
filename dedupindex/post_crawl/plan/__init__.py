"""The plan, second stage after a crawl: which records become revisits of which originals."""
