"""The web server of a driver: the page of its queries, reads of their states, and metrics."""
