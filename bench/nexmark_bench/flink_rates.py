"""The queries in Flink's SQL, by PyFlink in a virtual environment of its own: see scripts/ensure-flink.

A local cluster of Flink with two slots reads two files of JSON Lines, takes a checkpoint each second, and its
sink forgets all rows. A job takes a while to be deployed, so each query runs on a few events and on all. The rate
is that of the events that the second run has more, in the time that it takes longer.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from live.session import BUILD
from nexmark.generator import Event
from nexmark.rows import SIDE_INPUT

from nexmark_bench.given_events import READERS, write_dealt

PYTHON = BUILD / "bench-flink" / "bin" / "python"
LOG = BUILD / "bench-flink.log"
SECONDS_MAX = 1_800.0


def rates(queries: list[str], few: list[Event], events: list[Event]) -> dict[str, float | str]:
    """Events a second of each query, or why there is no figure."""
    if not PYTHON.exists():
        return dict.fromkeys(queries, f"no Flink: scripts/ensure-flink makes {PYTHON}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dealt(folder / "few", few)
        write_dealt(folder / "all", events)
        lines = (f"{key},{value}\n" for key, value in SIDE_INPUT.items())
        (folder / "side_input.csv").write_text("".join(lines))
        told = _run(folder, queries)
    more = len(events) - len(few)
    found: dict[str, float | str] = dict.fromkeys(queries, f"no answer: see {LOG}")
    for one in told:
        query = one["query"]
        if "error" in one:
            found[query] = _cause(one["error"])
        else:
            longer = one["all"] - one["few"]
            found[query] = more / longer if longer > 0 else "too few events to tell"
    return found


def _run(folder: Path, queries: list[str]) -> list[dict]:
    script = Path(__file__).with_name("flink_job.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with LOG.open("w") as log:
        try:
            job = subprocess.run(
                [str(PYTHON), str(script), str(folder), str(READERS), *queries],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
                timeout=SECONDS_MAX,
            )
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b""
            text = output.decode() if isinstance(output, bytes) else output
        else:
            text = job.stdout
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _cause(error: str) -> str:
    """The last exception that Java tells of, in one line."""
    lines = [line.strip() for line in error.splitlines()]
    causes = [line for line in lines if "Exception: " in line]
    return (causes or lines)[-1].rpartition("Exception: ")[2][:160]
