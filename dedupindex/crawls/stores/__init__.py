"""Where crawls are stored: beside an LMDB or Whoosh index, or on a Cassandra cluster."""
