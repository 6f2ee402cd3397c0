"""Keys whose state is out of memory: where a worker keeps them, and which have to go."""
