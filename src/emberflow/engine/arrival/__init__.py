"""``ordering="arrival"``: items as they come, snapshots by markers. The baseline."""
