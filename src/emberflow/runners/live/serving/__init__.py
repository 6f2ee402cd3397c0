"""What a live query serves to others: reads of its state, over HTTP and the bridge."""
