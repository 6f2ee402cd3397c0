"""A Spark session for a program that talks to people: quiet, and local unless told otherwise.

What the JVM writes (its log, Spark's warnings, and what the functions of a flow print on a worker)
goes to a file instead of into the middle of the program's own output. The file is deleted at the end
unless something went wrong or it was asked for.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from emberflow.errors import EmberflowError, FlowError, InputError, StepError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark runs on this version of Java and on newer ones.
JAVA_MIN = 17
JAVA_ADVICE = (
    f"Install Java {JAVA_MIN} or newer (Debian and Ubuntu: sudo apt-get install "
    f"openjdk-{JAVA_MIN}-jre-headless; macOS: brew install openjdk@{JAVA_MIN}), or set "
    "JAVA_HOME to one that you have."
)
_JAVA_VERSION = re.compile(r'version "([^"]+)"')

_LOG_LINES_SHOWN = 5

_QUIET = {"spark.ui.showConsoleProgress": "false"}
_LOCAL = {
    "spark.ui.enabled": "false",
    # Nothing of a local session can be reached from outside of this machine.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # All that this JVM does is to start one job of a few rows: these halve the time that takes.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    # Local workers import from this process's path, so Emberflow is there.
    "spark.python.daemon.module": "emberflow.runners.live.daemon",
}


#: The user's own mistakes: nothing in Spark's log could add to them.
_SAY_ALL_THEMSELVES = (FlowError, InputError, StepError)


class SparkStartError(EmberflowError):
    """Spark could not be started."""


@contextmanager
def spark_session(
    *,
    master: str,
    name: str,
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[SparkSession]:
    """A session for the time of a ``with`` block; ``log`` is where the JVM's output is to stay."""
    _check_java()
    is_local = master.startswith("local")
    if is_local:
        _let_workers_import_what_we_can()
    settings = {**_QUIET, **(_LOCAL if is_local else {}), **(conf or {})}
    settings.update({"spark.master": master, "spark.app.name": name})
    kept = log if log is not None else _temporary_log()
    session = _started(settings, kept)
    wanted = log is not None
    try:
        yield session
    except Exception as error:
        if not isinstance(error, _SAY_ALL_THEMSELVES):
            wanted = True
            error.add_note(f"Spark's log: {kept}")
        raise
    finally:
        session.stop()
        if not wanted:
            kept.unlink(missing_ok=True)


def _let_workers_import_what_we_can() -> None:
    """Local workers get this interpreter and the folders of this process's own path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    installed = {
        sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    own = [
        folder
        for folder in map(os.path.abspath, sys.path)
        if os.path.isdir(folder) and not {folder, os.path.dirname(folder)} & installed
    ]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *inherited])


def _temporary_log() -> Path:
    handle, path = tempfile.mkstemp(prefix="emberflow-spark-", suffix=".log")
    os.close(handle)
    return Path(path)


def _started(settings: Mapping[str, str], log: Path) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll(list(settings.items()))
    try:
        with log.open("ab") as output:
            streams = {"stdout": output, "stderr": output}
            gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except Exception as error:
        raise SparkStartError(
            f"Spark could not be started with master {settings['spark.master']}: "
            f"{_first_line(error)}\n{_end_of(log)}Spark's log: {log}"
        ) from error


def _check_java() -> None:
    if java_program() is None:
        raise SparkStartError(
            f"Spark needs Java {JAVA_MIN} or newer, and {place_without_java()}. {JAVA_ADVICE}"
        )


def java_program() -> Path | None:
    """The program that Spark's scripts start: that of JAVA_HOME if it is set, else on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        return program if program.exists() else None
    found = shutil.which("java")
    return None if found is None else Path(found)


def place_without_java() -> str:
    """Where `java_program` looked and found nothing, as the end of a sentence."""
    home = os.environ.get("JAVA_HOME")
    return f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is on the PATH"


def java_version_in(output: str) -> str | None:
    """The version in what ``java -version`` prints.

    >>> java_version_in('Picked up _JAVA_OPTIONS: -Xmx1g\\nopenjdk version "17.0.15" 2025-04-15')
    '17.0.15'
    """
    found = _JAVA_VERSION.search(output)
    return found[1] if found else None


def java_major(version: str) -> int:
    """The number that a version is known by. Java 8 calls itself 1.8.

    >>> java_major("17.0.15"), java_major("1.8.0_392"), java_major("21-ea")
    (17, 8, 21)
    """
    digits = re.findall(r"\d+", version.removeprefix("1."))
    return int(digits[0]) if digits else 0


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__qualname__)


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(f"  {line}\n" for line in lines[-_LOG_LINES_SHOWN:])
