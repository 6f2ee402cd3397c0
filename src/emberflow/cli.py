"""The command line: one function a command.

A command takes the target of a flow (`loading.load_flow`), prints what was asked for on stdout, and
everything else on stderr. It raises an `EmberflowError` where something is wrong: `main` prints the
message, without a traceback, and exits with 1. Usage errors exit with 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emberflow import __version__, drawing
from emberflow.errors import EmberflowError
from emberflow.loading import load_flow

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
        print(f"error: {error}", file=sys.stderr)
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
