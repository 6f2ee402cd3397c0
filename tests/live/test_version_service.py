"""The service behind `emberflow upgrade`: it runs only what lies beside the flow, as it is now."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow.dsl.loading import load_flow
from emberflow.runners.live.serving.version_service import VersionService

FLOW = """
import emberflow as ef
from besides import shown

flow = ef.Flow("words")
flow.front("words").map(shown).sink("out")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("talkative", "besides"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "talkative.py").write_text(FLOW)
    (tmp_path / "besides.py").write_text("def shown(word): return word.lower()")
    return tmp_path


def asked(service: VersionService, folder: Path, target: str, **more: Any) -> Any:
    given = {
        "target": target,
        "folder": str(folder),
        "at": None,
        "carry": {},
        "drop": [],
        "seconds": 1,
    }
    return service.serve("upgrade", {**given, **more})


def test_modules_are_imported_as_they_are_now(folder: Path) -> None:
    before = load_flow("talkative:flow")
    heard: list[Any] = []
    service = VersionService()
    with pytest.raises(ef.InputError, match="has not begun yet"):
        asked(service, folder, "talkative:flow")
    service.upgrade = lambda *given: heard.append(given)
    (folder / "besides.py").write_text("def shown(word): return word.upper() + '!'")
    assert asked(service, folder, "talkative:flow", at=7, carry={"a": "b"}, drop=["c"]) == "words"
    ((after, at, carry, seconds),) = heard
    assert (at, carry, seconds) == (7, {"a": "b", "c": ef.Drop("c")}, 1)
    assert ef.run(before, words=["Ada"]) == {"out": ["ada"]}
    assert ef.run(after, words=["Ada"]) == {"out": ["ADA!"]}


def test_a_module_that_fails_leaves_the_old_one_in_place(folder: Path) -> None:
    load_flow("talkative:flow")
    before = sys.modules["talkative"]
    service = VersionService()
    service.upgrade = lambda *given: pytest.fail("there is nothing to go over to")
    (folder / "besides.py").write_text("def shown(word) return word")
    with pytest.raises(ef.InputError, match=r"importing talkative failed: SyntaxError"):
        asked(service, folder, "talkative:flow")
    assert sys.modules["talkative"] is before


@pytest.mark.parametrize("target", ["antigravity:flow", "json:flow", "../talkative.py:flow", "a b"])
def test_nothing_else_is_imported(folder: Path, target: str) -> None:
    service = VersionService()
    service.upgrade = lambda *given: pytest.fail("it must not come so far")
    before = set(sys.modules)
    with pytest.raises(ef.InputError, match=r"imports no|does not name"):
        asked(service, folder, target)
    with pytest.raises(ef.InputError, match="imports no"):
        asked(service, folder.parent, "talkative:flow")
    assert set(sys.modules) == before


def test_backfills_are_read_where_the_query_keeps_its_own(
    folder: Path, tmp_path_factory: Any
) -> None:
    heard: list[Any] = []
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    service = VersionService(str(elsewhere / "cuts" / "own"))
    service.upgrade = lambda *given: heard.append(given)
    near = elsewhere / "cuts" / "history"
    near.mkdir(parents=True)
    (folder / "history").mkdir()
    for location in (near, folder / "history"):
        asked(service, folder, "talkative:flow", begin={"counts": str(location)})
        assert heard.pop()[2] == {"counts": ef.Backfilled(str(location))}
    for location in (elsewhere, near / "none", near / ".." / "..", "/proc", "s3://bucket/history"):
        with pytest.raises(ef.InputError, match="is not read for a request"):
            asked(service, folder, "talkative:flow", begin={"counts": str(location)})
    stored = VersionService("s3://bucket/cuts/own")
    stored.upgrade = lambda *given: heard.append(given)
    asked(stored, folder, "talkative:flow", begin={"counts": "s3://bucket/cuts/history"})
    with pytest.raises(ef.InputError, match="is not read for a request"):
        asked(stored, folder, "talkative:flow", begin={"counts": "s3://bucket/cuts/../evil"})


def test_a_number_of_workers_is_passed_on_and_its_error_comes_back() -> None:
    service = VersionService()
    with pytest.raises(ef.InputError, match="has not begun yet"):
        service.serve("rescale", {"workers": 3, "seconds": 5})
    heard: list[tuple[int, float]] = []
    service.rescale = lambda workers, seconds: heard.append((workers, seconds))
    assert service.serve("rescale", {"workers": 3, "seconds": 5}) == 3
    assert heard == [(3, 5.0)]

    def refused(workers: int, seconds: float) -> None:
        raise ef.EmberflowError(f"there are no {workers} slots")

    service.rescale = refused
    with pytest.raises(ef.InputError, match="there are no 9 slots"):
        service.serve("rescale", {"workers": 9, "seconds": 5})


def test_what_a_rebalance_has_moved_comes_back_and_so_does_its_error() -> None:
    service = VersionService()
    with pytest.raises(ef.InputError, match="has not begun yet"):
        service.serve("rebalance", {"seconds": 5})
    service.rebalance = lambda seconds: int(seconds) + 12
    assert service.serve("rebalance", {"seconds": 5}) == 17

    def refused(seconds: float) -> int:
        raise ef.EmberflowError("slices of keys move between workers at a cut by time")

    service.rebalance = refused
    with pytest.raises(ef.InputError, match="at a cut by time"):
        service.serve("rebalance", {"seconds": 5})
