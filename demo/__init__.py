"""The main job end to end: harvest twice, index, serve, look up, report."""
