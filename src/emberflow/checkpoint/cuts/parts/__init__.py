"""How a part of a cut is written."""
