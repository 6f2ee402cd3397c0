"""The machines that items run through: one file for each kind of node, and what they share."""
