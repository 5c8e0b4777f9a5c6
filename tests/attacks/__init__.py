"""Programs that attack the product: flipped bits, cut requests, hostile keys, killed runs.

Each is a test of seconds with a fixed seed. ``bin/test tests/attacks/ --effort 100 --seed 7`` runs
a hundred times as many rounds from another seed.
"""
