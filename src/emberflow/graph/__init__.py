"""The graph: what a flow is, once it is written. Nodes and edges, checked; not how they run."""
