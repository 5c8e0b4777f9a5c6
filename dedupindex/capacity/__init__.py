"""Estimate time, machines and cost of deduplication from measured rates."""
