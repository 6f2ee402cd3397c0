"""The processes of a query: who keeps them, and what they do between two lives."""
