"""Processes killed while they write: everything that was durable before is still there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.logs.front_log import read_log

KILLS = 4

#: Begins a life and makes cuts for ever; cut n holds n for each key, partly in lists.
MAKES_CUTS = """
import sys
import emberflow as ef
from emberflow.checkpoint import Manifest
from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.values.hashing import key_hash
from tests.checkpoint.cases import graph

store = CheckpointStore(sys.argv[1])
life = store.begin()
base, lists = life.restored, SavedLists()
numbers = ef.PersistentList()
for row in [] if base is None else store.rows(base, lists=lists):
    numbers = row[4][1]
print(base.number if base else 0, flush=True)
number = life.next_cut
while True:
    numbers = numbers.append(number)
    full = base is None or number % 7 == 0
    rows = [("last", key_hash(key), key, (number, 0), (number, numbers)) for key in range(40)]
    part = store.write_part(
        number, 0, [rows[:13], rows[13:]], incarnation=life.incarnation,
        base=None if full else base.number, lists=lists,
    )
    base = Manifest.of(
        graph(), number=number, incarnation=life.incarnation, time=(number, 0), parts=[part],
        base=None if full else base,
    )
    store.commit(base)
    print(number, flush=True)
    store.prune(2, incarnation=life.incarnation)
    number += 1
"""

#: Continues where the log ends, and prints what is durable. The time of position n is 3n + 1.
LOGS = """
import sys
from emberflow.checkpoint.logs.front_log import FrontLogWriter

log = FrontLogWriter(sys.argv[1], "words", 0, int(sys.argv[2]), segment_size=1_000)
position = -1
for position, _ in log.entries():
    pass
print(position, flush=True)
while True:
    for _ in range(20):
        log.append([(position + n, 3 * (position + n) + 1) for n in range(1, 11)])
        position += 10
    print(log.sync().position, flush=True)
"""


def killed(program: str, *arguments: object, dice: random.Random) -> list[int]:
    """What a process printed before it was killed, after some lines and some milliseconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = "".join(process.stdout.readline() for _ in range(dice.randint(2, 9)))
    time.sleep(dice.uniform(0, 0.03))
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    lines = (first + rest).splitlines(keepends=True)
    return [int(line) for line in lines if line.endswith("\n")]


def test_killed_while_it_makes_cuts(tmp_path: Path) -> None:
    dice = random.Random(11)
    store = CheckpointStore(tmp_path)
    before = 0
    for _ in range(KILLS):
        printed = killed(MAKES_CUTS, tmp_path, dice=dice)
        assert printed[0] == before  # it began with what is stored
        cut = store.latest()  # a warning would be an error
        assert cut is not None
        assert cut.number in (printed[-1], printed[-1] + 1)  # or it was killed before it printed
        rows = list(store.rows(cut))
        assert sorted(row[2] for row in rows) == list(range(40))
        for row in rows:
            assert row[4][0] == cut.number
            assert list(row[4][1]) == list(range(1, cut.number + 1))
        before = cut.number
    assert before > KILLS
    life = store.begin()
    store.prune(1, incarnation=life.incarnation)
    assert life.restored is not None
    left = {path.name for path in (tmp_path / "parts").iterdir()}
    assert left == {Path(part.path).name for part in life.restored.parts}


def test_killed_while_it_logs(tmp_path: Path) -> None:
    dice = random.Random(12)
    before = -1
    for incarnation in range(1, KILLS + 1):
        printed = killed(LOGS, tmp_path, incarnation, dice=dice)
        assert printed[0] >= before
        entries = list(read_log(tmp_path, "words", 0))
        assert entries == [(position, 3 * position + 1) for position in range(len(entries))]
        assert len(entries) > printed[-1]
        before = len(entries) - 1
    assert before >= 200 * KILLS
    assert len(list((tmp_path / "fronts" / "words-0").iterdir())) > KILLS  # also within one life
