"""Front logs: the times that fronts have given, in frames and segments."""
