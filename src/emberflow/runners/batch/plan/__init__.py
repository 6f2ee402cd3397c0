"""The plan of a batch: which nodes run in one pass, and which transactions wait for which."""
