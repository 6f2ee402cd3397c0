"""The page about adapters has every member and every rule, as the code has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from emberflow.fronts.protocol import FrontContract
from emberflow.sinks.protocol import SinkContract
from emberflow.testing import FRONT_RULES, SINK_RULES
from emberflow.values.members import declared, nothing

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the first table below a heading, by the name in their first cell."""
    section = PAGE.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| `(\w+)(?:\([^)]*\))?` \| (.*) \|$", section, re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in rows}


def defaults_of(contract: type) -> dict[str, str]:
    """By member, the default as the page writes it."""
    written: dict[Any, str] = {nothing: "does nothing"}
    return {
        name: "required"
        if default.__class__.__name__ == "_MISSING_TYPE"
        else written.get(default, f"`{default!r}`")
        for name, (_, default) in declared(contract).items()
    }


def test_the_page_has_the_members_and_defaults_of_a_front() -> None:
    found = {name: cells[0] for name, cells in table("The contract of a front").items()}
    assert found == {"partitions": "required", **defaults_of(FrontContract)}


def test_the_page_has_the_members_and_defaults_of_a_sink() -> None:
    found = {name: cells[0] for name, cells in table("The contract of a sink").items()}
    assert found == defaults_of(SinkContract)


def test_the_page_has_the_rules() -> None:
    for heading, rules in (("front", FRONT_RULES), ("sink", SINK_RULES)):
        found = {name: cells[0] for name, cells in table(f"The rules of a {heading}").items()}
        assert found == dict(rules)
