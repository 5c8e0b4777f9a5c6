"""Taking captures out of an index: what would be lost first, and then the next copies in place."""
