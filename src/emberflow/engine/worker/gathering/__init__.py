"""A region of transactions on one worker, while they conflict: who computes it, on which rows."""
