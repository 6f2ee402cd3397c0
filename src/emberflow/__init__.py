"""Emberflow: stream processing on Spark whose output is a pure function of its input."""

from emberflow import fronts, kafka, sinks
from emberflow.api import Flow
from emberflow.errors import (
    Diverted,
    EmberflowError,
    EndlessLoopError,
    FlowError,
    FunctionError,
    InputError,
    InternalError,
    NondeterminismError,
    NotKeptError,
    OutputError,
    ReadError,
    ReadTimeoutError,
    StepError,
    UnstableKeyError,
)
from emberflow.item import At, GlobalTime, Item, Meta, Timed
from emberflow.listener import LiveQueryListener
from emberflow.operators.transaction import State, Transaction, TransactionStream
from emberflow.operators.windows import (
    CountWindow,
    Session,
    Sliding,
    Tumbling,
    Window,
    WindowedStream,
    WindowResult,
)
from emberflow.persistent import PersistentList
from emberflow.runners.batch import failure_of, front_log, payloads, rows
from emberflow.runners.questions import Answer, Scan
from emberflow.runners.reference import run
from emberflow.runners.simulation import SimulationResult, simulate
from emberflow.runners.verify import Verification, verify
from emberflow.streams import KeyedStream, Loop, Stream, merge
from emberflow.transactional import Rejected, Values

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "At",
    "CountWindow",
    "Diverted",
    "EmberflowError",
    "EndlessLoopError",
    "Flow",
    "FlowError",
    "FunctionError",
    "GlobalTime",
    "InputError",
    "InternalError",
    "Item",
    "KeyedStream",
    "LiveQueryListener",
    "Loop",
    "Meta",
    "NondeterminismError",
    "NotKeptError",
    "OutputError",
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
    "Window",
    "WindowResult",
    "WindowedStream",
    "failure_of",
    "front_log",
    "fronts",
    "kafka",
    "merge",
    "payloads",
    "rows",
    "run",
    "simulate",
    "sinks",
    "verify",
]
