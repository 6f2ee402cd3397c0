"""Front logs: the times that fronts have given, in blocks and segments."""
