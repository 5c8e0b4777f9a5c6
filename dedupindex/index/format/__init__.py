"""The stored form of an index: keys, cells, tombstones and the ledger as bytes."""
