"""Crawls that write to the index while they run, each a transaction that is committed or cancelled.

What a crawl reports lies in ``INDEX/crawls.mdb``, beside the index and not in it, until the crawl
is committed and `merge` takes it over. `view` shows index and crawls as one.
"""
