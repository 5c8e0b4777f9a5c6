"""What deduplication takes in time, machines and money, from rates that were measured."""
