"""One switch decides between the compiled loops and their twins, for a whole process, and tells which."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import types
from typing import Any

import pytest

from emberflow import native

#: A transaction, a reduction and a grouping, by the compiled loops or by their twins.
FLOW = """
import pickle, sys
from emberflow import native
from emberflow.engine.loops import accesses, columns, items
from emberflow.runners import interpreter
from emberflow.engine.loops.accesses import StateBucket

bucket = StateBucket("ada", 5)
bucket.entries.append(((1, 0), 0, 0, 2, "payload", 5, 6, None))
bucket.noted = True
sys.stdout.buffer.write(pickle.dumps((native.status(), native.is_compiled(), bucket)))
"""


def answer(switch: str | None) -> tuple[dict[str, str], bool, Any]:
    """What a process with this switch says."""
    environment = {name: value for name, value in os.environ.items() if name != native.VARIABLE}
    if switch is not None:
        environment[native.VARIABLE] = switch
    done = subprocess.run(
        [sys.executable, "-c", FLOW], env=environment, capture_output=True, timeout=60, check=True
    )
    found: tuple[dict[str, str], bool, Any] = pickle.loads(done.stdout)
    return found


def test_each_module_tells_how_it_runs() -> None:
    assert set(native.status()) == set(native.MODULES)
    for how in native.status().values():
        assert how == "compiled" or how.startswith("python: ")


def test_what_status_returns_is_the_callers() -> None:
    native.status().clear()
    assert native.status()


@pytest.mark.parametrize("switch", ["0", None])
def test_the_variable_turns_the_compiled_loops_off(switch: str | None) -> None:
    status, is_compiled, bucket = answer(switch)
    if switch == "0":
        assert set(status.values()) == {"python: turned off by EMBERFLOW_NATIVE=0"}
        assert not is_compiled
    else:
        assert is_compiled == (set(status.values()) == {"compiled"})
    # A bucket pickled there is one of the kind that runs here.
    from emberflow.engine.loops.accesses import StateBucket

    assert type(bucket) is StateBucket
    assert (bucket.key, bucket.base, bucket.value, bucket.noted) == ("ada", 5, 5, True)
    assert bucket.entries == [((1, 0), 0, 0, 2, "payload", 5, 6, None)]


class Loader:
    """Stands for Python's import of the extension modules."""

    def __init__(self, faults: dict[str, Exception], interface: int = native.INTERFACE) -> None:
        self.faults = faults
        self.interface = interface

    def __call__(self, name: str) -> types.ModuleType:
        short = name.rpartition("._")[2]
        if short in self.faults:
            raise self.faults[short]
        module = types.ModuleType(name)
        module.INTERFACE = self.interface  # type: ignore[attr-defined]
        return module


def chosen(
    monkeypatch: pytest.MonkeyPatch, loader: Loader, switch: str | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    monkeypatch.setattr(native, "import_module", loader)
    return native._chosen(switch)


NOT_BUILT = {name: ModuleNotFoundError(name) for name in native.MODULES}


def test_all_are_compiled_if_all_load(monkeypatch: pytest.MonkeyPatch) -> None:
    modules, status = chosen(monkeypatch, Loader({}))
    assert set(modules) == set(native.MODULES)
    assert status == dict.fromkeys(native.MODULES, "compiled")


def test_where_nothing_is_built_the_twins_run_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chosen(monkeypatch, Loader(NOT_BUILT)) == (
        {},
        dict.fromkeys(native.MODULES, "python: not built"),
    )


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (ModuleNotFoundError("_rows"), "python: not built"),
        (ImportError("undefined symbol: spam"), "python: cannot be loaded: undefined symbol: spam"),
    ],
)
def test_if_one_does_not_load_none_is_used_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, fault: ImportError, why: str
) -> None:
    with pytest.warns(RuntimeWarning, match=r"in Python\. _rows: .* Install emberflow again"):
        modules, status = chosen(monkeypatch, Loader({"rows": fault}))
    assert not modules
    assert status.pop("rows") == why
    assert set(status.values()) == {"python: since _rows cannot be used"}


def test_modules_of_other_sources_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(RuntimeWarning, match="built from other sources"):
        modules, status = chosen(monkeypatch, Loader({}, interface=1))
    assert not modules
    assert set(status.values()) == {
        f"python: built from other sources (interface 1, {native.INTERFACE} expected)"
    }


def test_the_compiled_loops_can_be_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"EMBERFLOW_NATIVE=1 demands .* _loops: not built"):
        chosen(monkeypatch, Loader(NOT_BUILT), "1")
    modules, _ = chosen(monkeypatch, Loader({}), "1")
    assert modules


def test_another_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must be 0 or 1 or not set, got 'off'"):
        chosen(monkeypatch, Loader({}), "off")
