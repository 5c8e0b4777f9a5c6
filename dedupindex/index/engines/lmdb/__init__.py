"""The default engine: one LMDB file per generation."""
