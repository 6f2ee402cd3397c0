"""What a worker takes of its machine: memory, time of its loop, time of processors."""
