"""Values: what every other room is made of. Items and their order, stable hashes, shares of them,
persistent lists, and what can be said of a user's function. Nothing here knows of flows."""
