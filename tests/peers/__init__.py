"""Real crawlers and readers judge what we read and write."""
