"""The pictures in docs/ that are drawn from code are what the code draws."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "docs" / "pictures.py"


def test_the_pictures_of_the_documents_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, text in module.pictures().items():
        stored = (ROOT / "docs" / path).read_text(encoding="utf-8")
        assert stored == text, f"docs/{path} is out of date: python scripts/docs/pictures.py"
