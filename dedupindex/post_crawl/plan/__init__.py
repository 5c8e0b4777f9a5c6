"""Resolving, second stage after a crawl: of equal payloads one stays, the others name it."""
