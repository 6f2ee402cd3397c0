"""Commands that look at a query: its page from a checkpoint, and its figures in a terminal."""
