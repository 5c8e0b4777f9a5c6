"""Speed and size, measured beside the peers in one run; ``bin/bench`` runs it."""
