"""The whole conversion of a collection, tried on copies before anything is done to it."""
