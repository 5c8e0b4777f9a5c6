"""Crawls that report captures while they run, each a transaction that is committed or cancelled.

The captures of a crawl are in a store (`store`, `stores`), until the crawl is committed and merged
into the index (`merge_crawls`). `combined_view` shows index and crawls as one.
"""
