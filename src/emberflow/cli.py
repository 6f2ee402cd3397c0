"""The command line: one function a command.

A command prints what was asked for on stdout and everything else on stderr. Where something is wrong
it raises an `EmberflowError`: `main` prints the message, without a traceback, and exits with 1. Usage
errors exit with 2.

Every command has its ``--help`` in the base install, so nothing that is imported here may import an
optional package at its top.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from emberflow import __version__
from emberflow.commands.audit import audit as audit_run
from emberflow.commands.diagnosis import doctor as diagnosis
from emberflow.commands.diff import diff as diff_of
from emberflow.commands.diff import drawing_of
from emberflow.commands.elements import load_elements
from emberflow.commands.rescale import rebalance as rebalance_query
from emberflow.commands.rescale import rescale as rescale_query
from emberflow.commands.run import given_carry
from emberflow.commands.run import run as run_live
from emberflow.commands.upgrade import upgrade as upgrade_query
from emberflow.commands.views.top import top as top_of
from emberflow.commands.views.ui import ui as ui_of
from emberflow.dsl.loading import load_flow, load_flow_or_versions
from emberflow.errors import EmberflowError
from emberflow.graph import drawing
from emberflow.guarantees import EFFORT
from emberflow.runners import verify as verification
from emberflow.runners.bars.terminal import bars

app = typer.Typer(
    name="emberflow",
    help="Deterministic stream processing on Spark: the output of a flow is a pure function of its "
    "input.",
    epilog="New here? 'emberflow doctor' tells what works on this machine. Commands exit with 0 if "
    "all is well, 1 if something is wrong, and 2 if they are called in a wrong way.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="FLOW",
        help="A flow, or a function that returns one: module:attribute or "
        "path/to/file.py:attribute. Without an attribute, 'flow' is taken.",
    ),
]


Carries = Annotated[
    list[str] | None,
    typer.Option(
        "--carry",
        metavar="NEW=OLD",
        help="The step NEW has its state from the step OLD of the version before. Once for each.",
    ),
]
Drops = Annotated[
    list[str] | None,
    typer.Option(
        "--drop", metavar="STEP", help="Give up the state of this step of the version before."
    ),
]
Begins = Annotated[
    list[str] | None,
    typer.Option(
        "--begin",
        metavar="STEP=CHECKPOINT",
        help="STEP begins with the state that it has in the checkpoint of a backfill. Once for each.",
    ),
]


def main() -> None:
    try:
        app()
    except EmberflowError as error:
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"emberflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of every command. That there is a callback also keeps a single command a command."""


@app.command()
def graph(
    target: Target,
    *,
    text: Annotated[bool, typer.Option("--text", help="Print an outline as text instead.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print Graphviz DOT instead.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg",
            metavar="PATH",
            help="Also write an SVG picture. Needs the extra 'graph' and Graphviz.",
        ),
    ] = None,
) -> None:
    """Print a flow as a Mermaid flowchart, as text or as Graphviz DOT."""
    if text and dot:
        raise typer.BadParameter("choose one of --text and --dot")
    drawn = load_flow(target).graph()
    form = drawing.text if text else drawing.dot if dot else drawing.mermaid
    print(form(drawn))
    if svg is not None:
        drawing.svg(drawn, svg)
        print(f"wrote {svg}", file=sys.stderr)


@app.command()
def diff(
    old: Annotated[
        str,
        typer.Argument(metavar="OLD", help="A flow, as below, or the location of a checkpoint."),
    ],
    target: Target,
    *,
    carry: Carries = None,
    begin: Begins = None,
    drop: Drops = None,
    mermaid: Annotated[
        bool,
        typer.Option("--mermaid", help="Draw the new version, with what is new or changed marked."),
    ] = False,
) -> None:
    """Show what a new version of a flow changes, and what becomes of its state.

    Exits with 1 if state would be lost.
    """
    if mermaid:
        print(drawing_of(old, target))
        return
    text, can_take_over = diff_of(old, target, given_carry(carry, drop, begin))
    print(text)
    if not can_take_over:
        raise typer.Exit(1)


@app.command()
def upgrade(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a query that runs here.")
    ],
    target: Target,
    *,
    at: Annotated[
        int | None,
        typer.Option(
            help="The time at which it takes over; by default just ahead, or where its backfills end."
        ),
    ] = None,
    carry: Carries = None,
    begin: Begins = None,
    drop: Drops = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it runs.")] = 120.0,
) -> None:
    """Let a query that runs go over to another version of its flow, without stopping.

    The driver imports the flow anew, from the folder that it was started in. If the new version
    cannot take over, the old one goes on.
    """
    upgrade_query(name, target, at=at, carry=given_carry(carry, drop, begin), seconds=timeout)
    print(f"{name} runs {target}")


@app.command()
def rescale(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a query that runs here.")
    ],
    *,
    workers: Annotated[int, typer.Option(min=1, help="How many workers it is to have.")],
    timeout: Annotated[float, typer.Option(help="Seconds to wait until they run.")] = 120.0,
) -> None:
    """Let a query that runs go on with another number of workers, without stopping.

    Its output stays the same. If there are no slots for more workers, the query goes on as it was.
    """
    rescale_query(name, workers, seconds=timeout)
    print(f"{name} runs with {workers} worker{'s' if workers > 1 else ''}")


@app.command()
def rebalance(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a query that runs here.")
    ],
    *,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until they have moved.")] = 120.0,
) -> None:
    """Move keys of a query that runs from its busiest workers to the idlest, if it pays.

    Its output stays the same.
    """
    moved = rebalance_query(name, seconds=timeout)
    slices = f"{moved} slice{'s' if moved > 1 else ''}"
    print(f"{name}: {slices} moved" if moved else f"{name}: nothing moved, it would not pay")


@app.command()
def top(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a query that runs here.")
    ],
    *,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and leave.")] = False,
    every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="How often to look.")
    ] = 1.0,
) -> None:
    """Show how a query that runs on this machine is doing: its steps, fronts and sinks."""
    top_of(name, once=once, seconds=every)


@app.command()
def ui(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The location of a checkpoint.")
    ],
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 for any that is free.")] = 0,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Only this machine reaches the default.")
    ] = "127.0.0.1",
    opens: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Serve the page of a query that has ended, from its checkpoint.

    Shows steps, cuts, lives and versions, and reads states as of a cut.
    """
    ui_of(checkpoint, port=port, host=host, opens=opens)


@app.command()
def verify(
    target: Target,
    *,
    elements: Annotated[
        str | None,
        typer.Option(
            "--elements",
            metavar="TARGET",
            help="The elements of all fronts: module:attribute or path/to/file.py:attribute of a "
            "dict from fronts to elements, of a function that returns one, or of a function of a "
            "random.Random that makes one. Without an attribute, 'elements' is taken.",
        ),
    ] = None,
    front: Annotated[
        list[str] | None,
        typer.Option(
            "--front",
            metavar="NAME=PATH",
            help="The elements of one front: the values of a file of JSON Lines (.jsonl), or the "
            "lines of any other file. Once for each front.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="How many runs to simulate, each with other delays."),
    ] = 200,
    workers: Annotated[
        str,
        typer.Option(metavar="N,N,...", help="With how many workers: one number after the other."),
    ] = "1,2,3,5",
) -> None:
    """Check that a flow, or ef.Versions of one, is deterministic; name the function if it is not."""
    if elements is None and not front:
        raise typer.BadParameter("say what to run it on: --elements TARGET or --front NAME=PATH")
    counts = workers.replace(" ", "").split(",")
    if not all(count.isdecimal() and int(count) for count in counts):
        raise typer.BadParameter(
            f"--workers takes numbers of workers, as in 1,2,3; got {workers!r}"
        )
    flow = load_flow_or_versions(target)
    given, generate = load_elements(elements, front or [])
    with bars():
        verified = verification.verify(
            flow, seeds=seeds, workers=tuple(map(int, counts)), generate=generate, **given
        )
    print(verified)


@app.command()
def run(
    target: Target,
    *,
    front: Annotated[
        list[str] | None,
        typer.Option(
            "--front",
            metavar="NAME=KIND:PLACE",
            help="Where a front reads: files:FOLDER (JSON Lines), text:FOLDER, socket:HOST:PORT, "
            "kafka://HOST:PORT/TOPIC or structured. Options follow a question mark, as in "
            "?time=FIELD&until_end=true. Once for each front.",
        ),
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="NAME=KIND:PLACE",
            help="Where a sink writes: files:FOLDER (JSON Lines), parquet:FOLDER, delta:TABLE, "
            "iceberg:NAMESPACE.TABLE, postgres:DSN?table=NAME, kafka://HOST:PORT/TOPIC, structured or "
            "console. Once for each sink.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="How many workers. Each takes a slot of Spark."),
    ] = 2,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="MASTER",
            help="Spark's master. Without one, Spark runs here, with a slot for each worker.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The name of the query. Without one, the flow's."),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="fail|divert",
            help="When a function raises or input is malformed: 'fail' ends the query, 'divert' "
            "writes the element to --sink errors=... and goes on.",
        ),
    ] = "fail",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="Where the state of the query is kept. The same command goes on from there.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="KEY=VALUE", help="An option of the query, as in batch=500."
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf", metavar="KEY=VALUE", help="A setting of Spark, as in spark.driver.memory=4g."
        ),
    ] = None,
    carry: Carries = None,
    begin: Begins = None,
    drop: Drops = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only tell what this version of the flow changes for the checkpoint's state.",
        ),
    ] = False,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Start Spark, and run the flow when the driver that runs it is lost. Needs --checkpoint.",
        ),
    ] = False,
    ui: Annotated[
        bool,
        typer.Option("--ui", help="Serve a page that shows the query, and print its address."),
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Keep Spark's log in this file, with what the flow's functions print. Without "
            "one, the log is kept only if something goes wrong.",
        ),
    ] = None,
) -> None:
    """Run a flow live on Spark, until its fronts end or you press Ctrl-C.

    The first Ctrl-C drains the query: what it has read is processed and written.
    The second one ends it at once. Needs the extra 'spark'.
    """
    if dry_run:
        if checkpoint is None:
            raise typer.BadParameter("--dry-run looks at a checkpoint: give --checkpoint LOCATION")
        diff(checkpoint, target, carry=carry, begin=begin, drop=drop)
        return
    run_live(
        target,
        fronts=front or [],
        sinks=sink or [],
        workers=workers,
        master=master,
        name=name,
        on_error=on_error,
        options=[
            *(["uiPort=0"] if ui else []),
            *(option or []),
            *([f"checkpointLocation={checkpoint}"] if checkpoint else []),
        ],
        conf=conf or [],
        log=log,
        carry=given_carry(carry, drop, begin),
        standby=standby,
    )


@app.command()
def audit(
    target: Target,
    *,
    front: Annotated[
        list[str] | None,
        typer.Option(
            "--front",
            metavar="NAME=KIND:PLACE",
            help="What went in: files:PATH (JSON Lines) or text:PATH, a folder or a file, or "
            "log:CHECKPOINT, the log of a live query. Times are those of ?time=FIELD, or the "
            "numbers of the lines. Once for each front.",
        ),
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="NAME=KIND:PLACE",
            help="What came out: files:FOLDER, parquet:FOLDER or postgres:DSN?table=NAME. A sink "
            "given as console is left out. Once for each sink.",
        ),
    ] = None,
    at_least: Annotated[
        bool, typer.Option("--at-least", help="Also exit with 0 for at-least-once.")
    ] = False,
    at_most: Annotated[
        bool, typer.Option("--at-most", help="Also exit with 0 for at-most-once.")
    ] = False,
    failures: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="How many failures there were, if you know."),
    ] = None,
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished", help="The run still goes on: output may be missing at the end."
        ),
    ] = False,
    effort: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="How many elements the search for an explanation may run before it gives up.",
        ),
    ] = EFFORT,
) -> None:
    """Check that what the sinks of a run hold is exactly-once.

    Runs the flow again on what went in, and compares its output with theirs.
    Exits with 0 if that is exactly-once, else with 1.
    """
    with bars():
        verdict = audit_run(
            target,
            fronts=front or [],
            sinks=sink or [],
            failures=failures,
            finished=not unfinished,
            effort=effort,
        )
    print(verdict)
    is_enough = (
        verdict.exactly_once
        or (at_least and verdict.at_least_once is True)
        or (at_most and verdict.at_most_once is True)
    )
    if not is_enough:
        raise typer.Exit(1)


@app.command()
def doctor(
    *,
    start: Annotated[
        bool,
        typer.Option("--start", help="Also start Spark and run a small flow live."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, for programs.")
    ] = False,
) -> None:
    """Tell what works on this machine, and how to get what does not.

    Exits with 0 if live works, else with 1. Changes nothing.
    """
    with Console(stderr=True).status("Looking at this machine ..."):
        findings = diagnosis.examined(start=start)
    if as_json:
        print(diagnosis.as_json(findings))
    else:
        diagnosis.show(findings, Console())
    if not diagnosis.live_works(findings):
        raise typer.Exit(1)
