"""The probes of `emberflow doctor`: each looks at one thing and says what it found.

Guarantees: no probe waits longer than its time limit, and one that fails gives a finding that says so
(`guarded`). So there is a report, whatever is broken here. A probe needs no extra: it imports optional
packages in a process of their own, and finds those that crash or hang when they are imported.

What a probe finds is `missing` only if something that the finding names in ``needed_for`` will not
work. What may be slow, or work only in part, is a `warning`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

from emberflow import __version__, native
from emberflow.commands.diagnosis.children import ended, ended_python
from emberflow.commands.session import (
    JAVA_ADVICE,
    JAVA_MIN,
    java_major,
    java_program,
    java_version_in,
    place_without_java,
)
from emberflow.extras import EXTRAS, Package, install_command

State: TypeAlias = Literal["ok", "warning", "missing"]

LIVE, BATCH = "live", "batch"
SPARK = (LIVE, BATCH)
KAFKA, POSTGRES, PICTURES = "Kafka fronts and sinks", "Postgres sinks", "graph --svg"
DELTA, ICEBERG = "Delta sinks", "Iceberg sinks"
OBJECTS = "object stores (S3, GCS, Azure)"
HDFS = "checkpoints on HDFS"
FEATURES = (LIVE, BATCH, KAFKA, DELTA, ICEBERG, OBJECTS, HDFS, POSTGRES, PICTURES)

_JAVA_SECONDS_MAX = 20.0
_IMPORT_SECONDS_MAX = 60.0
_RESOLVE_SECONDS_MAX = 5.0
_LOOPBACK_SECONDS_MAX = 5.0
_TRIAL_SECONDS_MAX = 180.0

_LOOPBACK = "127.0.0.1"
#: Any address that is not of this machine's network: no packet is sent to it.
_OUTSIDE = ("192.0.2.1", 9)
_FREE_BYTES_MIN = 1 << 30
#: The usual limit on Linux, which is enough; that of macOS is 256.
_OPEN_FILES_MIN = 1_024
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    state: State
    found: str
    #: What to do about it; empty where there is nothing to do.
    advice: str = ""
    #: Those of `FEATURES` that do not work where this is missing.
    needed_for: tuple[str, ...] = ()


# --- Python and its packages ----------------------------------------------------------------------


def python() -> Finding:
    """The version is that of the running one, which pip checked against the package's minimum."""
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}", "", SPARK)


#: Prints a line of JSON before each import and one after it: the last line tells what crashed.
_IMPORTS = """
import importlib, importlib.metadata, json, sys
for name, module in json.loads(sys.argv[1]):
    print(json.dumps([module, None, "importing it did not come to an end"]), flush=True)
    version, problem = None, ""
    try:
        found = importlib.import_module(module)
        version = getattr(found, "__version__", None)
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    print(json.dumps([module, version, problem]), flush=True)
"""


def extras(*names: str) -> list[Finding]:
    """One finding for each of these extras."""
    # A package may have modules that need more than others.
    packages = {package.module: package for extra in names for package in EXTRAS[extra]}
    wanted = json.dumps([[package.name, package.module] for package in packages.values()])
    child = ended_python(["-c", _IMPORTS, wanted], _IMPORT_SECONDS_MAX)
    seen: dict[str, tuple[str | None, str]] = {}
    for module, version, problem in _json_lines(child.output):
        seen[module] = (version, problem)
    problems = {
        module: _problem_of(package, *seen.get(module, (None, "it was not reached")))
        for module, package in packages.items()
    }
    versions = {module: version for module, (version, _) in seen.items()}
    return [_extra_finding(extra, problems, versions) for extra in names]


def _extra_finding(
    extra: str, problems: dict[str, str], versions: dict[str, str | None]
) -> Finding:
    needed_for = {
        "spark": SPARK,
        "kafka": (KAFKA,),
        "registry": (KAFKA,),
        "delta": (DELTA,),
        "iceberg": (ICEBERG,),
        "s3": (OBJECTS,),
        "hdfs": (HDFS,),
        "postgres": (POSTGRES,),
        "graph": (PICTURES,),
    }
    own = EXTRAS[extra]
    wrong = [f"{one.name} {problems[one.module]}" for one in own if problems[one.module]]
    name = f"Extra '{extra}'"
    if not wrong:
        found = ", ".join(f"{one.name} {versions[one.module] or ''}".rstrip() for one in own)
        return Finding(name, "ok", found, "", needed_for[extra])
    if all(problems[one.module] == _ABSENT for one in own):
        found = f"not installed: {', '.join(one.name for one in own)}"
    else:
        found = "; ".join(wrong)
    return Finding(name, "missing", found, install_command(extra), needed_for[extra])


_ABSENT = "is not installed"


def _problem_of(package: Package, version: str | None, problem: str) -> str:
    if problem.startswith("ModuleNotFoundError") and version is None:
        return _ABSENT
    if problem:
        return f"cannot be imported ({problem.splitlines()[0]})"
    if version is not None and _numbers(version) < _numbers(package.at_least):
        return f"{version} is older than {package.at_least}"
    if version is not None and package.below and _numbers(version) >= _numbers(package.below):
        return f"{version} is not older than {package.below}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """
    >>> _numbers("4.3.0rc1") < _numbers("4.10"), _numbers("5") <= _numbers("5.0.1")
    (True, True)
    """
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


#: What a worker's Python has to have, and to tell. Spark itself brings pyspark.
_WORKER = """
import json, sys
print(json.dumps(["version", "%d.%d" % sys.version_info[:2]]), flush=True)
print(json.dumps(["prefix", sys.prefix]), flush=True)
import emberflow, pyarrow, zmq
print(json.dumps(["emberflow", emberflow.__version__]), flush=True)
"""


def workers_python() -> Finding:
    """The Python that Spark starts for workers: PYSPARK_PYTHON, or ``python3`` on the PATH."""
    given = os.environ.get("PYSPARK_PYTHON")
    name = "Workers' Python"
    which = "PYSPARK_PYTHON is " + (given or "not set, so Spark starts python3")
    # Where it is not set, `emberflow run` sets it. So live can work all the same.
    state: State = "missing" if given else "warning"
    advice = f"export PYSPARK_PYTHON={sys.executable}"
    if not given:
        advice += " (emberflow run does so by itself)"
    program = shutil.which(given or "python3")
    if program is None:
        problem = "and that is not on the PATH"
    else:
        child = ended([program, "-c", _WORKER], _IMPORT_SECONDS_MAX)
        told = dict(_json_lines(child.output))
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        if told.get("prefix") == sys.prefix:  # the extras are looked at elsewhere
            return Finding(name, "ok", f"{which}, the one that runs this", "", SPARK)
        if told.get("version", own) != own:
            problem = f"which is Python {told['version']}, and the driver's is {own}"
        elif child.code is None:
            problem = f"which did not answer within {_IMPORT_SECONDS_MAX:g} s"
        elif child.code:
            problem = f"which cannot run a worker ({_last_line(child.errors)})"
        elif told["emberflow"] != __version__:
            problem = f"which has emberflow {told['emberflow']}, and the driver has {__version__}"
        else:
            return Finding(name, "ok", f"{which}, at {program}", "", SPARK)
    return Finding(name, state, f"{which}, {problem}", advice, SPARK)


def compiled_loops() -> Finding:
    """Without a compiler the same loops run in Python."""
    found = native.status()
    slow = {name: which for name, which in found.items() if which != "compiled"}
    name = "Compiled loops"
    if not slow:
        return Finding(name, "ok", ", ".join(found))
    return Finding(
        name,
        "warning",
        "; ".join(f"{module}: {which}" for module, which in slow.items()),
        "Install a C compiler, then: pip install --force-reinstall --no-deps emberflow",
    )


# --- Spark ----------------------------------------------------------------------------------------


def java_runtime() -> Finding:
    name = "Java"
    program = java_program()
    if program is None:
        return Finding(name, "missing", place_without_java(), JAVA_ADVICE, SPARK)
    home = os.environ.get("JAVA_HOME")
    where = f"at {program} ({'of JAVA_HOME' if home else 'JAVA_HOME is not set'})"
    child = ended([str(program), "-version"], _JAVA_SECONDS_MAX)
    version = java_version_in(child.errors + child.output)
    if version is None:
        why = "did not answer in time" if child.code is None else _last_line(child.errors)
        return Finding(name, "missing", f"{program} does not run: {why}", JAVA_ADVICE, SPARK)
    if java_major(version) < JAVA_MIN:
        return Finding(name, "missing", f"{version} {where} is too old", JAVA_ADVICE, SPARK)
    return Finding(name, "ok", f"{version} {where}", "", SPARK)


def spark() -> Finding:
    """Which Spark would be started, and its slots on this machine. Nothing is started."""
    name = "Spark"
    own = _version_of("pyspark")
    if own is None:
        advice = install_command("spark")
        return Finding(name, "missing", "pyspark is not installed", advice, SPARK)
    cores = _cores()
    slots = (
        f"{_counted(cores, 'core')}: a session with the master local[*] has "
        f"{_counted(cores, 'slot')}, and each worker takes one"
    )
    home = os.environ.get("SPARK_HOME")
    if not home:
        return Finding(name, "ok", f"{own} of pyspark; {slots}", "", SPARK)
    advice = "unset SPARK_HOME, to use the Spark that pyspark brings"
    version = _version_in_home(Path(home))
    if version is None:
        found = f"SPARK_HOME is {home}, which has no jars of Spark"
        return Finding(name, "missing", found, advice, SPARK)
    if version != own:
        found = f"SPARK_HOME is {home}, which has Spark {version}, and pyspark is {own}"
        return Finding(name, "warning", found, advice, SPARK)
    return Finding(name, "ok", f"{version} of SPARK_HOME ({home}); {slots}", "", SPARK)


def trial() -> Finding:
    """Start Spark here and run a small flow live."""
    child = ended_python(["-m", "emberflow.commands.diagnosis.trial"], _TRIAL_SECONDS_MAX)
    told: dict[str, Any] = next(iter(_json_lines(child.output)), {})
    name = "Trial"
    if "slots" in told:
        found = (
            f"a local session started in {told['session_seconds']:.1f} s and has "
            f"{_counted(told['slots'], 'slot')}; a flow ran live in {told['flow_seconds']:.1f} s"
        )
        return Finding(name, "ok", found, "", SPARK)
    if child.code is None:
        problem = f"it did not end within {_TRIAL_SECONDS_MAX:g} s"
    else:
        problem = str(told.get("error") or _last_line(child.errors))
    advice = "Mend what is missing above. If nothing is, the log of Spark that it names tells more."
    return Finding(name, "missing", problem, advice, SPARK)


def _version_in_home(home: Path) -> str | None:
    for jar in home.glob("jars/spark-core_*.jar"):
        return jar.stem.rpartition("-")[2]
    return None


def _version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # A cluster may put a copy on the path that pip does not know.
        return "an unknown version" if importlib.util.find_spec(package) else None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- The machine ----------------------------------------------------------------------------------


def huge_pages() -> Finding:
    """Workers ask for huge pages with ``madvise`` (see `native/_arenas.c`)."""
    name = "Huge pages"
    if not _HUGE_PAGES.exists():
        return Finding(name, "ok", "this system has none to ask for; workers use small pages")
    chosen = re.search(r"\[(\w+)\]", _HUGE_PAGES.read_text())
    setting = chosen[1] if chosen else "unknown"
    if setting in ("always", "madvise"):
        return Finding(name, "ok", f"workers get them (the setting is {setting!r})")
    return Finding(
        name,
        "warning",
        f"turned off (the setting is {setting!r}), so a large state is read more slowly",
        f"echo madvise | sudo tee {_HUGE_PAGES}",
    )


def ports() -> Finding:
    """Workers and the driver talk over TCP: on loopback here, over the network on a cluster."""
    name = "Ports"
    try:
        _talk_on_loopback()
    except OSError as error:
        return Finding(
            name,
            "missing",
            f"two sockets on {_LOOPBACK} cannot talk: {error}",
            "Let programs of this machine connect to each other: see its firewall or sandbox.",
            SPARK,
        )
    given = os.environ.get("SPARK_LOCAL_IP")
    if given:
        if not _can_bind(given):
            return Finding(
                name,
                "missing",
                f"SPARK_LOCAL_IP is {given}, and this machine has no such address",
                "unset SPARK_LOCAL_IP, or set it to 127.0.0.1",
                SPARK,
            )
        address = given
    else:
        host = socket.gethostname()
        resolved = _resolved(host)
        if resolved is None:
            return Finding(
                name,
                "warning",
                f"{_LOOPBACK} works, but the host name {host!r} has no address, and Spark asks "
                f"for it when it starts",
                "export SPARK_LOCAL_IP=127.0.0.1, or add the host name to /etc/hosts",
                SPARK,
            )
        address = _outward_address() if resolved.startswith("127.") else resolved
    found = f"{_LOOPBACK} for workers here; those of a cluster reach the driver at {address}"
    return Finding(name, "ok", found, "", SPARK)


def _talk_on_loopback() -> None:
    with socket.create_server((_LOOPBACK, 0)) as server:
        server.settimeout(_LOOPBACK_SECONDS_MAX)
        with socket.create_connection(server.getsockname(), _LOOPBACK_SECONDS_MAX) as one:
            other, _ = server.accept()
            with other:
                other.settimeout(_LOOPBACK_SECONDS_MAX)
                one.sendall(b"?")
                if other.recv(1) != b"?":
                    raise OSError("what was sent did not arrive")


def _can_bind(address: str) -> bool:
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family):
            return True
    except OSError:
        return False


def _resolved(host: str) -> str | None:
    """The address of a host name. A name server may take minutes: it is not waited for."""
    found: list[str] = []

    def resolve() -> None:
        with contextlib.suppress(OSError):
            found.append(socket.gethostbyname(host))

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_RESOLVE_SECONDS_MAX)
    return found[0] if found else None


def _outward_address() -> str:
    """The address of this machine on its network; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTSIDE)  # of datagrams, this sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return _LOOPBACK


def temporary_folders() -> Finding:
    """Spark and Emberflow spill there, and Java unpacks its native libraries there."""
    name = "Temporary files"
    given = os.environ.get("SPARK_LOCAL_DIRS", "")
    folders = dict.fromkeys(
        [tempfile.gettempdir(), *(folder.strip() for folder in given.split(",") if folder.strip())]
    )
    found, low, advice = [], False, ""
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"?")
        except OSError as error:
            return Finding(
                name,
                "missing",
                f"nothing can be written to {folder}: {error.strerror or error}",
                "Set TMPDIR and SPARK_LOCAL_DIRS to folders that you may write to.",
                SPARK,
            )
        free = shutil.disk_usage(folder).free
        words = f"{folder} ({free / (1 << 30):,.1f} GB free)"
        if free < _FREE_BYTES_MIN:
            low, advice = True, "Make room there, or set TMPDIR and SPARK_LOCAL_DIRS."
        if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
            low, advice = True, "Set spark.driver.extraJavaOptions=-Djava.io.tmpdir=FOLDER."
            words += ", from where no program or library may be run"
        found.append(words)
    return Finding(name, "warning" if low else "ok", ", ".join(found), advice, SPARK)


def open_files() -> Finding:
    """Sockets and files that a process may have open."""
    name = "Open files"
    try:
        import resource
    except ImportError:
        return Finding(name, "ok", "this system has no limit that can be asked for")
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return Finding(name, "ok", "as many as a process likes")
    found = f"at most {limit:,} in a process"
    if limit >= _OPEN_FILES_MIN:
        return Finding(name, "ok", found)
    possible = 4_096 if highest == resource.RLIM_INFINITY else min(4_096, highest)
    return Finding(name, "warning", f"{found}, which is few", f"ulimit -n {possible}")


def graphviz_program() -> Finding:
    name = "Graphviz"
    program = shutil.which("dot")
    if program is not None:
        return Finding(name, "ok", f"the program dot at {program}", "", (PICTURES,))
    return Finding(
        name,
        "missing",
        "the program dot is not on the PATH",
        "apt-get install graphviz (Debian, Ubuntu) or brew install graphviz (macOS)",
        (PICTURES,),
    )


# --- Words ----------------------------------------------------------------------------------------


def guarded(name: str, probe: Callable[[], Finding | Iterable[Finding]]) -> list[Finding]:
    """What a probe finds. If it fails, that is a finding too: the report is for broken machines."""
    try:
        found = probe()
    except Exception as error:
        problem = f"this could not be looked at: {type(error).__qualname__}: {error}"
        return [Finding(name, "warning", problem)]
    return [found] if isinstance(found, Finding) else list(found)


def _json_lines(output: str) -> list[Any]:
    """The lines that are JSON. A package may print others while it is imported."""
    found = []
    for line in output.splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
