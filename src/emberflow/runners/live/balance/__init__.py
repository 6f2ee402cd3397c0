"""Who is to own which slices, and how many workers there are to be: decided by what they tell of their load."""
