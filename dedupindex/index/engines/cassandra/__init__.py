"""The engine for clusters: Apache Cassandra or ScyllaDB."""
