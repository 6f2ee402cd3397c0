"""Tools to test a flow, and a front or a sink of one's own. They need neither pytest nor Spark.

**Flows.** A flow is tested without any of this: `emberflow.run` gives its output, `emberflow.simulate`
runs it on simulated workers, and `emberflow.verify` finds functions that are not pure. What is here
is for a live query, where the world can go wrong:

- `Script` is a front that gives the elements of a list. Faults stand between the elements: `Pause`,
  `Repeat`, `Raise`, `Crash`, and `fronts.Malformed`.
- `Recorder` is a sink that remembers its bundles and can fail before or after it stores one.

**Adapters.** `check_front` and `check_sink` hold a front or a sink to the rules of its contract, those
of `FRONT_RULES` and `SINK_RULES`. They take a function that makes the adapter, and raise a
`ContractError`, which is an `AssertionError`, that names the rule that is broken and how::

    def test_my_front(tmp_path):
        (tmp_path / "1.txt").write_text("ash\\nember\\n")
        testing.check_front(lambda: MyFront(tmp_path), payloads=["ash", "ember"])

``docs/adapters.md`` has complete examples.
"""

from __future__ import annotations

from emberflow.testing.front_rules import FRONT_RULES, check_front
from emberflow.testing.recorder import Recorder
from emberflow.testing.rules import ContractError
from emberflow.testing.script import Crash, Pause, Raise, Repeat, Script
from emberflow.testing.sink_rules import SINK_RULES, SimulatedCrash, check_sink

__all__ = [
    "FRONT_RULES",
    "SINK_RULES",
    "ContractError",
    "Crash",
    "Pause",
    "Raise",
    "Recorder",
    "Repeat",
    "Script",
    "SimulatedCrash",
    "check_front",
    "check_sink",
]
