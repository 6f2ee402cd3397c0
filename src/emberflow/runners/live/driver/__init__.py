"""The driver's side of a live query: the coordinator, cuts, progress, the cluster, listeners."""
