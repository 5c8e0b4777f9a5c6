"""Duplicates become revisits, each judged anew from its file; all else is copied as bytes."""
