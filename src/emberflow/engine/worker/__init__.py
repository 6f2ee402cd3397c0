"""The worker: the whole graph for some hashes, and how it runs, routes and retains."""
