"""Services of a live query for other processes: reads of its state, over HTTP and the bridge."""
