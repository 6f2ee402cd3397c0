"""Child processes, in which a flow is tried with other hash seeds, and what they do."""
