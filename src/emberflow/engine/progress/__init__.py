"""Progress: which global times are under way, and how far fronts may run ahead of them."""
