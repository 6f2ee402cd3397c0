"""What is sure about what a function returns, without calling it."""
