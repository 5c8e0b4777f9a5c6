"""Lookups: queries, strategies, policies, decisions, and how answers are rendered."""
