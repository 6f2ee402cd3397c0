"""Programs that a command starts and waits for, but never for longer than a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

#: The exit code that shells give a program that cannot be started.
_CANNOT_START = 127


class Ended(NamedTuple):
    """How a program ended: its exit code, None if it took too long, and what it printed."""

    code: int | None
    output: str
    errors: str


def ended(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a program to its end, or end it with all that it started.

    It prints into files: a pipe would stay open for as long as any process that it started lives.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            return Ended(_CANNOT_START, "", str(error))
        code: int | None = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Ended(code, _text_of(output), _text_of(errors))


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def ended_python(arguments: Sequence[str], seconds: float) -> Ended:
    """The same for this very Python, which imports from where this process does."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return ended([sys.executable, "-P", *arguments], seconds, {"PYTHONPATH": path})
