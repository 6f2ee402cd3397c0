"""The compiled twins of the hottest loops, in C. Where there is no compiler their twins in Python run."""
