"""Sources into an index: plan the containers, stage their captures, load the index once."""
