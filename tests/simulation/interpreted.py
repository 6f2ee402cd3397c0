"""Random transactions as plain data, the flow made of them, and an interpreter that knows no engine.

A *script* says what transactions do: branches of steps, some of which raise for some payloads. `flow_of`
writes it with the public API. `interpreted` runs it in a loop over elements with dicts for states: for
each element it works on a copy, and keeps the copy or forgets it. It is the definition of transactions
with diverted errors, written a second time.

Functions are drawn from the seed, and raise for some of their arguments. Payloads are small ints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import emberflow as ef
from tests.simulation.failing import failing

#: How rarely functions raise: so rarely that most transactions commit.
_MODULI = (9, 20, 50)


class Step(NamedTuple):
    """``map``, ``filter``, ``flat_map``, ``update``, ``read``, or ``output``, which is the last one."""

    kind: str
    function: Callable[..., Any] | None = None
    key: Callable[[Any], Any] | None = None
    check: Callable[..., bool] | None = None
    state: str = ""
    #: Its name in the flow, and of its check.
    name: str = ""


@dataclass
class Script:
    """One transaction: the steps of each branch, and a constraint over all values."""

    name: str
    branches: list[list[Step]]
    require: Callable[[dict[Any, Any]], bool] | None
    #: Which of its outcomes the flow reads.
    reads_committed: bool
    reads_rejected: bool


@dataclass
class Scripts:
    """All transactions of a flow, each on a front of its own, over states that they share."""

    states: dict[str, int]
    transactions: list[Script]
    elements: dict[str, list[Any]] = field(default_factory=dict)


def drawn(seed: int) -> Scripts:
    """The scripts of a seed, and the elements of their fronts."""
    random = Random(f"interpreted {seed}")
    states = {f"s{number}": random.choice((0, 5)) for number in range(random.choice((1, 2)))}
    scripts = Scripts(states, [])
    for number in range(random.choice((1, 1, 2, 3))):
        scripts.transactions.append(_script(random, f"t{number}", list(states)))
    # Each state is used, and what it holds in the end is read.
    reads = [Step("read", key=_key, state=state, name=f"read-{state}") for state in states]
    all_of_it = Script("end", [[read, Step("output")] for read in reads], None, False, False)
    count = random.choice((10, 25))
    fronts = {script.name: [] for script in scripts.transactions}
    for time in range(count):
        fronts[random.choice(list(fronts))].append(ef.At(time, random.randint(0, 60)))
    scripts.transactions.append(all_of_it)
    scripts.elements = {**fronts, "end": [ef.At(count + key, key) for key in range(3)]}
    return scripts


def _key(number: Any) -> Any:
    return _plain(number) % 3


def _plain(payload: Any) -> int:
    """An int of a payload, or of the pair of payload and value that an access gives."""
    if isinstance(payload, tuple):
        return _plain(payload[0]) * 3 + payload[1]
    return int(payload)


def _sometimes(function: Callable[..., Any], random: Random) -> Callable[..., Any]:
    return failing(function, random, _MODULI) if random.random() < 0.5 else function


def _script(random: Random, name: str, states: list[str]) -> Script:
    branches = []
    single = random.random() < 0.3
    for branch in range(1 if single else random.choice((1, 2, 2, 3))):
        kinds = ("map",) if single else ("map", "filter", "flat_map")
        steps = [_stateless(random, kinds) for _ in range(random.choice((0, 0, 1, 2)))]
        for _ in range(1 if single else random.choice((1, 1, 2))):
            steps.append(_access(random, random.choice(states)))
            if random.random() < 0.4:
                steps.append(_stateless(random, ("map", "filter", "flat_map")))
        if steps[-1].kind not in ("update", "read") or random.random() < 0.3:
            steps.append(Step("output"))
        steps = [
            step._replace(name=f"b{branch}-{number}-{step.kind}")
            for number, step in enumerate(steps)
        ]
        branches.append(steps)
    require = None
    if not single and random.random() < 0.3:
        modulus = random.choice((3, 5))

        def adds_up(values: dict[Any, Any]) -> bool:
            return sum(values.values()) % modulus != 0

        require = _sometimes(adds_up, random)
    return Script(name, branches, require, random.random() < 0.8, random.random() < 0.8)


def _stateless(random: Random, kinds: tuple[str, ...]) -> Step:
    kind, a = random.choice(kinds), random.randint(1, 9)
    functions: dict[str, Callable[..., Any]] = {
        "map": lambda n: _plain(n) * a % 61,
        "filter": lambda n: _plain(n) % 4 != a % 4,
        "flat_map": lambda n: [_plain(n) + a * part for part in range(_plain(n) % 3)],
    }
    return Step(kind, _sometimes(functions[kind], random))


def _access(random: Random, state: str) -> Step:
    a, check = random.randint(2, 9), None
    if random.random() < 0.5:
        checks: list[Callable[..., bool]] = [
            lambda value: value >= -5,
            lambda value, n: value > _plain(n) % 10 - 15,
        ]
        check = _with_arity(random.choice(checks), random)
    key = _sometimes(_key, random)
    if random.random() < 0.2:
        return Step("read", None, key, check, state)
    updates: list[Callable[..., Any]] = [
        lambda value, n: value + _plain(n) % a,
        lambda value, n: value - _plain(n) % a,
        lambda value, n: (value * 3 + _plain(n)) % 40,
    ]
    return Step("update", _sometimes(random.choice(updates), random), key, check, state)


def _with_arity(check: Callable[..., bool], random: Random) -> Callable[..., bool]:
    """A check that sometimes raises, and takes as many arguments as before: their number matters."""
    called = _sometimes(check, random)
    if check.__code__.co_argcount == 1:
        return lambda value: called(value)
    return lambda value, n: called(value, n)


# --- As a flow -------------------------------------------------------------------------------------


def flow_of(scripts: Scripts) -> ef.Flow:
    flow = ef.Flow("interpreted")
    states = {name: flow.state(name, default=default) for name, default in scripts.states.items()}
    for script in scripts.transactions:
        outputs = []
        with flow.front(script.name).transaction(name=script.name) as tx:
            for branch in script.branches:
                stream: Any = tx
                for step in branch:
                    if step.kind == "output":
                        outputs.append(tx.output(stream))
                    elif step.key is None:
                        stream = getattr(stream, step.kind)(step.function, name=step.name)
                    else:
                        given = () if step.function is None else (step.function,)
                        keyed = stream.key_by(step.key)
                        access = getattr(keyed, step.kind)
                        state = states[step.state]
                        stream = access(state, *given, check=step.check, name=step.name)
            if script.require is not None:
                tx.require(script.require, name="adds up")
        for number, output in enumerate(outputs):
            output.sink(f"{script.name} output {number}")
        if script.reads_committed:
            tx.committed.sink(f"{script.name} committed")
        if script.reads_rejected:
            rejected = tx.rejected.map(lambda r: (r.element, r.check, dict(r.values)))
            rejected.sink(f"{script.name} rejected")
    return flow


# --- By an interpreter -----------------------------------------------------------------------------


class _Running:
    """One element in one transaction, on a copy of the states."""

    def __init__(self, script: Script, states: dict[tuple[str, Any], Any], default: Any) -> None:
        self.script = script
        self.states = states
        self.default = default
        self.touched: dict[tuple[str, Any], Any] = {}
        self.outputs: dict[int, list[Any]] = {}
        self.refused: tuple[str, dict[Any, Any]] | None = None
        #: The payload and the message of what raised first.
        self.error: tuple[Any, str] | None = None

    def run(self, element: Any) -> None:
        outputs = 0
        for branch in self.script.branches:
            self._step(branch, element, outputs)
            outputs += branch[-1].kind == "output"
        if self.error is None and self.refused is None and self.touched:
            require = self.script.require
            if require is not None:
                try:
                    if not require(dict(self.touched)):
                        self.refused = "adds up", self.touched
                except ValueError as error:
                    self.error = element, str(error)

    def _step(self, steps: list[Step], payload: Any, output: int) -> None:
        """This step, and all behind it, for each of its images before the next one."""
        if not steps:
            return
        step, behind = steps[0], steps[1:]
        if step.kind == "output":
            self.outputs.setdefault(output, []).append(payload)
            return
        try:
            images = list(self._images(step, payload))
        except ValueError as error:
            self.error = self.error or (payload, str(error))
            return
        for image in images:
            self._step(behind, image, output)

    def _images(self, step: Step, payload: Any) -> Iterator[Any]:
        if step.key is not None:
            yield from self._access(step, payload)
        elif step.kind == "map":
            yield step.function(payload)
        elif step.kind == "flat_map":
            yield from step.function(payload)
        elif step.function(payload):
            yield payload

    def _access(self, step: Step, payload: Any) -> Iterator[Any]:
        where = (step.state, step.key(payload))
        value = self.touched.get(where, self.states.get(where, self.default[step.state]))
        if step.function is not None:
            value = step.function(value, payload)
        holds = True
        if step.check is not None:
            takes = step.check.__code__.co_argcount
            holds = step.check(value) if takes == 1 else step.check(value, payload)
        self.touched[where] = value
        if holds:
            yield payload, value
        elif self.refused is None:
            self.refused = f"{self.script.name}/{step.name}", {where: value}


def interpreted(scripts: Scripts) -> tuple[dict[str, list[Any]], list[tuple[int, Any, str]]]:
    """The output of each sink; and of each record of the errors sink time, payload and message."""
    states: dict[tuple[str, Any], Any] = {}
    sinks: dict[str, list[Any]] = {name: [] for name in flow_of(scripts).graph().sinks}
    errors: list[tuple[int, Any, str]] = []
    by_name = {script.name: script for script in scripts.transactions}
    entering = [
        (at.time, name, at.payload) for name, all_ in scripts.elements.items() for at in all_
    ]
    for time, name, element in sorted(entering):
        running = _Running(by_name[name], states, scripts.states)
        running.run(element)
        if running.error is not None:
            errors.append((time, *running.error))
        elif running.refused is not None:
            if f"{name} rejected" in sinks:
                sinks[f"{name} rejected"].append((element, *running.refused))
        else:
            states.update(running.touched)
            if f"{name} committed" in sinks:
                sinks[f"{name} committed"].append(element)
            for number, payloads in running.outputs.items():
                sinks[f"{name} output {number}"] += payloads
    return sinks, errors
