"""The command line: one function a command.

A command takes the target of a flow (`dsl.loading.load_flow`), prints what was asked for on stdout, and
everything else on stderr. It raises an `EmberflowError` where something is wrong: `main` prints the
message, without a traceback, and exits with 1. Usage errors exit with 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emberflow import __version__
from emberflow.commands.audit import audit as audit_run
from emberflow.commands.elements import load_elements
from emberflow.commands.run import run as run_live
from emberflow.dsl.loading import load_flow
from emberflow.errors import EmberflowError
from emberflow.graph import drawing
from emberflow.guarantees import EFFORT
from emberflow.runners import verify as verification

app = typer.Typer(
    name="emberflow",
    help="Deterministic stream processing on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="FLOW",
        help="module:attribute or path/to/file.py:attribute, a flow or a function that returns one. "
        "The attribute is 'flow' where none is given.",
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
    text: Annotated[bool, typer.Option("--text", help="Print it as text instead.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print Graphviz DOT instead.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="PATH", help="Also write an SVG picture, with Graphviz."),
    ] = None,
) -> None:
    """Draw a flow: print it as a Mermaid flowchart."""
    if text and dot:
        raise typer.BadParameter("choose one of --text and --dot")
    drawn = load_flow(target).graph()
    form = drawing.text if text else drawing.dot if dot else drawing.mermaid
    print(form(drawn))
    if svg is not None:
        drawing.svg(drawn, svg)
        print(f"wrote {svg}", file=sys.stderr)


@app.command()
def verify(
    target: Target,
    *,
    elements: Annotated[
        str | None,
        typer.Option(
            "--elements",
            metavar="TARGET",
            help="module:attribute or path/to/file.py:attribute of a dict from fronts to elements, a "
            "function that returns one, or a function of a random.Random that makes one. The "
            "attribute is 'elements' where none is given.",
        ),
    ] = None,
    front: Annotated[
        list[str] | None,
        typer.Option(
            "--front",
            metavar="NAME=PATH",
            help="The elements of one front: JSON Lines if the file ends in .jsonl, else its lines.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many networks to simulate.")] = 200,
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of workers, which take turns.")
    ] = "1,2,3,5",
) -> None:
    """Check that a flow is deterministic; if not, name the function that is to blame."""
    if elements is None and not front:
        raise typer.BadParameter("say what to run it on: --elements TARGET or --front NAME=PATH")
    counts = workers.replace(" ", "").split(",")
    if not all(count.isdecimal() and int(count) for count in counts):
        raise typer.BadParameter(
            f"--workers takes numbers of workers, as in 1,2,3; got {workers!r}"
        )
    flow = load_flow(target)
    given, generate = load_elements(elements, front or [])
    print(
        verification.verify(
            flow, seeds=seeds, workers=tuple(map(int, counts)), generate=generate, **given
        )
    )


@app.command()
def run(
    target: Target,
    *,
    front: Annotated[
        list[str] | None,
        typer.Option(
            "--front",
            metavar="NAME=KIND:PLACE",
            help="Where a front reads: files:FOLDER (JSON Lines), text:FOLDER, socket:HOST:PORT or "
            "kafka://HOST:PORT/TOPIC. "
            "Options stand behind it: ?time=FIELD&until_end=true, or pattern=*.log.",
        ),
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="NAME=KIND:PLACE",
            help="Where a sink writes: files:FOLDER (JSON Lines), parquet:FOLDER, "
            "postgres:DSN?table=NAME, kafka://HOST:PORT/TOPIC or console.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Each takes a slot of Spark.")] = 2,
    master: Annotated[
        str | None,
        typer.Option(help="Spark's master; local with a slot a worker where none is given."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name of the query.")] = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="fail|divert",
            help="What a function that raises, or malformed input, does: end the query, or go to "
            "--sink errors=... while the query goes on.",
        ),
    ] = "fail",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="Where cuts and logs are kept; the same command goes on from there.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the query."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Keep Spark's log there, with what the flow's functions print. Without this it is "
            "kept only if something goes wrong.",
        ),
    ] = None,
) -> None:
    """Run a flow live on Spark. Ctrl-C drains it and ends; again, it ends at once."""
    run_live(
        target,
        fronts=front or [],
        sinks=sink or [],
        workers=workers,
        master=master,
        name=name,
        on_error=on_error,
        options=[*(option or []), *([f"checkpointLocation={checkpoint}"] if checkpoint else [])],
        conf=conf or [],
        log=log,
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
            help="What went in: files:PATH (JSON Lines) or text:PATH, a folder or a file. Times are "
            "those of ?time=FIELD, or the numbers of the lines.",
        ),
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="NAME=KIND:PLACE",
            help="What came out: files:FOLDER, parquet:FOLDER or postgres:DSN?table=NAME. A sink "
            "given as console is not looked at.",
        ),
    ] = None,
    at_least: Annotated[
        bool, typer.Option("--at-least", help="At-least-once is good enough.")
    ] = False,
    at_most: Annotated[
        bool, typer.Option("--at-most", help="At-most-once is good enough.")
    ] = False,
    failures: Annotated[
        int | None,
        typer.Option(min=0, help="How many failures there were, if that is known."),
    ] = None,
    unfinished: Annotated[
        bool,
        typer.Option("--unfinished", help="The run is not over: more output may still come."),
    ] = False,
    effort: Annotated[
        int, typer.Option(min=1, help="Elements that may enter the search for an explanation.")
    ] = EFFORT,
) -> None:
    """Judge what sinks hold by what went in. Exits with 0 if it is exactly-once."""
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
