"""Front logs: the times that fronts have assigned, in blocks and segments."""
