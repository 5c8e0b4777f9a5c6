"""Exact deduplication of documents in any file system or object store, in two steps.

Every object is hashed with BLAKE3; rows of hash and path go into shards by the first characters of
the hash. Equal hashes are in the same shard, so that each shard is deduplicated by itself.
"""
