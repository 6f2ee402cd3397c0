"""What mypy says about code of users, in its strict mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: What has no say in the types of a flow is left out: mypy then takes seconds.
CONFIGURATION = """
[mypy]
strict = True

[mypy-emberflow.*]
follow_imports = silent

[mypy-pyspark.*,emberflow.runners.*,emberflow.fronts.*,emberflow.sinks.*,emberflow.kafka.*,\
emberflow.testing.*,emberflow.rows.*]
follow_imports = skip
"""


def checked_by_mypy(folder: Path, **texts: str) -> list[str]:
    """The lines that mypy prints about modules with these texts."""
    (folder / "mypy.ini").write_text(CONFIGURATION)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary"),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "of_users")),
            *(f"{name}.py" for name in texts),
        ],
        cwd=folder,
        env={"PATH": "", "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()
