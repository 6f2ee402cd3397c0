"""What the supervisor is made of: what begins a life, what takes over between two, and what a loss means."""
