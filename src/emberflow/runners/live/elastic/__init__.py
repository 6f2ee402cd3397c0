"""Who acts on the load of a running query: by hand, or by itself."""
