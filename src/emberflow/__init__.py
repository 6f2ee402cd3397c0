"""Emberflow: stream processing on Spark whose output is a pure function of its input."""

from emberflow import fronts, kafka, sinks, testing
from emberflow.api import Flow, Versions
from emberflow.checkpoint.cuts.backfills import last_moment
from emberflow.dsl.operators.aggregates import Aggregate
from emberflow.dsl.operators.aggregates.catalogue import (
    collect,
    count,
    count_distinct,
    distinct,
    first,
    last,
    max,
    mean,
    min,
    sum,
    top,
)
from emberflow.dsl.operators.changes import Change, Changes, GroupedChanges, changes_from
from emberflow.dsl.operators.transactions import State, Transaction, TransactionStream
from emberflow.dsl.operators.windows import (
    CountWindow,
    Cumulate,
    GatheredWindows,
    OverStream,
    Session,
    Sliding,
    Tumbling,
    Window,
    WindowedStream,
    WindowResult,
    Windows,
)
from emberflow.dsl.operators.windows.updates import WindowUpdate
from emberflow.dsl.streams import KeyedStream, Loop, Stream, merge
from emberflow.errors import (
    Diverted,
    EmberflowError,
    EndlessLoopError,
    FlowError,
    FunctionError,
    InputError,
    InternalError,
    Late,
    MissingExtraError,
    NondeterminismError,
    NotKeptError,
    OutputError,
    ReadError,
    ReadTimeoutError,
    StepError,
    UnstableKeyError,
)
from emberflow.graph.transactions import Rejected, Values
from emberflow.graph.versions import Backfilled, Drop, Migrate
from emberflow.rows.inputs import rows
from emberflow.runners.bars.terminal import bars
from emberflow.runners.batch.failures import failure_of
from emberflow.runners.batch.front_logs import front_log
from emberflow.runners.batch.runner import payloads
from emberflow.runners.comparison import Comparison, compare
from emberflow.runners.live.listener import LiveQueryListener
from emberflow.runners.questions import Answer, Scan
from emberflow.runners.reference import run
from emberflow.runners.simulation import SimulationResult, simulate
from emberflow.runners.verify import Verification, verify
from emberflow.values.item import At, GlobalTime, Item, Meta, Timed
from emberflow.values.persistent import PersistentList

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "Answer",
    "At",
    "Backfilled",
    "Change",
    "Changes",
    "Comparison",
    "CountWindow",
    "Cumulate",
    "Diverted",
    "Drop",
    "EmberflowError",
    "EndlessLoopError",
    "Flow",
    "FlowError",
    "FunctionError",
    "GatheredWindows",
    "GlobalTime",
    "GroupedChanges",
    "InputError",
    "InternalError",
    "Item",
    "KeyedStream",
    "Late",
    "LiveQueryListener",
    "Loop",
    "Meta",
    "Migrate",
    "MissingExtraError",
    "NondeterminismError",
    "NotKeptError",
    "OutputError",
    "OverStream",
    "PersistentList",
    "ReadError",
    "ReadTimeoutError",
    "Rejected",
    "Scan",
    "Session",
    "SimulationResult",
    "Sliding",
    "State",
    "StepError",
    "Stream",
    "Timed",
    "Transaction",
    "TransactionStream",
    "Tumbling",
    "UnstableKeyError",
    "Values",
    "Verification",
    "Versions",
    "Window",
    "WindowResult",
    "WindowUpdate",
    "WindowedStream",
    "Windows",
    "bars",
    "changes_from",
    "collect",
    "compare",
    "count",
    "count_distinct",
    "distinct",
    "failure_of",
    "first",
    "front_log",
    "fronts",
    "kafka",
    "last",
    "last_moment",
    "max",
    "mean",
    "merge",
    "min",
    "payloads",
    "rows",
    "run",
    "simulate",
    "sinks",
    "sum",
    "testing",
    "top",
    "verify",
]
