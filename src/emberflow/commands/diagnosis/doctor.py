"""``emberflow doctor``: tells what will work here, what will not, and what to do about it.

It changes nothing and needs no extra. The probes are in `probes`; this module runs them side by side,
and shows what they found as a table or as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from emberflow import __version__
from emberflow.commands.diagnosis import probes
from emberflow.commands.diagnosis.probes import FEATURES, LIVE, Finding

_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red"}

_Probe = Callable[[], Finding | Iterable[Finding]]

#: In the order of the report.
_PROBES: dict[str, _Probe] = {
    "Python": probes.python,
    "Extra 'spark'": partial(probes.extras, "spark"),
    "Java": probes.java_runtime,
    "Spark": probes.spark,
    "Workers' Python": probes.workers_python,
    "Ports": probes.ports,
    "Temporary files": probes.temporary_folders,
    "Open files": probes.open_files,
    "Compiled loops": probes.compiled_loops,
    "Huge pages": probes.huge_pages,
    "Extras": partial(
        probes.extras, "kafka", "registry", "delta", "iceberg", "s3", "hdfs", "postgres", "graph"
    ),
    "Graphviz": probes.graphviz_program,
}


def examined(*, start: bool = False) -> list[Finding]:
    """What the probes found. With ``start`` Spark is started after them, if it can be."""
    # Most of the time goes into waiting for other processes.
    with ThreadPoolExecutor() as pool:
        found = pool.map(probes.guarded, _PROBES.keys(), _PROBES.values())
        findings = [finding for each in found for finding in each]
    if start and live_works(findings):
        findings += probes.guarded("Trial", probes.trial)
    return findings


def working(findings: Sequence[Finding]) -> dict[str, bool]:
    """Of each feature, whether all that it needs is here."""
    missing = {
        feature
        for finding in findings
        if finding.state == "missing"
        for feature in finding.needed_for
    }
    return {feature: feature not in missing for feature in FEATURES}


def live_works(findings: Sequence[Finding]) -> bool:
    return working(findings)[LIVE]


def as_json(findings: Sequence[Finding]) -> str:
    report = {
        "emberflow": __version__,
        "works": working(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return json.dumps(report, indent=2)


def show(findings: Sequence[Finding], console: Console) -> None:
    console.print(
        Text(f"emberflow {__version__} on {platform.system()} {platform.machine()}", "bold")
    )
    console.print(_table(findings))
    for line in _summary(findings):
        console.print(line)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said: RenderableType = Text(finding.found)
        if finding.advice:
            said = Text.assemble(finding.found, ("\n-> ", "bold"), (finding.advice, "bold"))
        table.add_row(Text(finding.state, _STYLES[finding.state]), Text(finding.name), said)
    return table


def _summary(findings: Sequence[Finding]) -> list[Text]:
    """What works here, what does not, and what always does."""
    works = working(findings)
    here = ", ".join(feature for feature, does in works.items() if does)
    not_here = ", ".join(feature for feature, does in works.items() if not does)
    lines = [Text()]
    if here:
        lines.append(Text.assemble(("Works here: ", "green"), f"{here}."))
    if not_here:
        lines += [
            Text.assemble(
                ("Does not work here: ", "bold red"), f"{not_here}. See what is missing above."
            ),
            Text(
                "Works without Spark: ef.run, ef.simulate, ef.verify, emberflow graph and verify."
            ),
        ]
    return lines
