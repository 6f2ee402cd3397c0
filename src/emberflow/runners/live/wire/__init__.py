"""The wire: sockets, what travels on them, and what wakes those who wait for them."""
