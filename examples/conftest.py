"""Lets the examples import each other by name when pytest imports them, as they do as scripts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
