"""The shuffle of a batch: chunks of items between passes, sorted, spilled and in order."""
