"""Rewriting: duplicates become revisits, each compared again; all else is copied as bytes."""
