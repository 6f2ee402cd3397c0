"""The shuffle of a batch: rows of many items between passes, and sorts that spill to disk."""
