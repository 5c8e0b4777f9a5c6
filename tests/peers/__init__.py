"""Tests with real crawlers, readers and clusters."""
