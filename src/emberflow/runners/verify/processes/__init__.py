"""Child processes that try a flow under other hash seeds, and the tasks that they perform."""
