"""The engines that store an index: LMDB, Whoosh and Cassandra."""
