"""Exact deduplication of documents in any file system or object store, in two steps.

Every object is hashed with BLAKE3, and rows of hash and path go into shards by the first digits of
the hash. Equal hashes are in the same shard, so each shard is deduplicated independently.
"""
