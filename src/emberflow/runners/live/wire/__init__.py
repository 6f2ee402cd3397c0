"""The wire: sockets, the messages on them, and the bell that wakes a thread that polls them."""
