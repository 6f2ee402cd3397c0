"""``ordering="arrival"`` live: the worker's loop and the coordinator's part."""
