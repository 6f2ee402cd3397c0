"""Cuts: all state as of a global time, and what has to be remembered to take one."""
