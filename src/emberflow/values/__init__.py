"""Values that every other room uses: items and their order, stable hashes, each worker's share of the
hashes, persistent lists and maps, and descriptions of user functions. Nothing here knows of flows."""
