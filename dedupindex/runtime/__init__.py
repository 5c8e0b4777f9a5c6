"""Files, workers, databases and output that every room uses; knows nothing of web archives."""
