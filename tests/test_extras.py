"""The base install: what works without an extra, and which extra the rest asks for."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import emberflow as ef
from emberflow.extras import EXTRAS, extra_of, need
from tests.base_install import PROJECT, BaseInstall

FLOW = """
import emberflow as ef

flow = ef.Flow("count")
(
    flow.front("words")
    .key_by(str.lower)
    .reduce(first=lambda word: 1, combine=lambda total, word: total + 1)
    .sink("counts")
)
"""

#: Prints what each call raised, as JSON: the class of the error and its message.
CALLS = """
import json
from pathlib import Path

import emberflow as ef
from shop import flow

calls = {
    "flow.live": lambda: flow.live(None),
    "flow.batch": lambda: flow.batch(None, words=None),
    "flow.backfill": lambda: flow.backfill(None, until=5, checkpoint="cuts", words=None),
    "ef.rows": lambda: ef.rows(None),
    "ef.payloads": lambda: ef.payloads(None),
    "ef.front_log": lambda: ef.front_log(None, "cuts", "words"),
    "fronts.Kafka": lambda: ef.fronts.Kafka("localhost:9092", "words"),
    "sinks.Kafka": lambda: ef.sinks.Kafka("localhost:9092", "words"),
    "kafka.Avro": lambda: ef.kafka.Avro({"type": "string"}),
    "kafka.Protobuf": lambda: ef.kafka.Protobuf(str),
    "kafka.Registry": lambda: ef.kafka.Registry("http://localhost:8081"),
    "sinks.Postgres": lambda: ef.sinks.Postgres("", "words"),
    "sinks.Delta": lambda: ef.sinks.Delta("table"),
    "fronts.Delta": lambda: ef.fronts.Delta("table"),
    "sinks.Iceberg": lambda: ef.sinks.Iceberg("shop.words"),
    "the location 's3://bucket/x'": lambda: ef.sinks.Files("s3://bucket/x"),
    "a location on HDFS": lambda: ef.sinks.Files("hdfs://cluster/out"),
    "the format 'parquet'": lambda: ef.sinks.Files("out", format="parquet"),
    "the data source 'emberflow'": lambda: __import__("pyspark_emberflow"),
}
raised = {}
for name, call in calls.items():
    try:
        call()
    except Exception as error:
        raised[name] = [type(error).__qualname__, str(error)]
print(json.dumps(raised))
"""

#: Prints how each command ended, as JSON: its exit code, what it printed, and its errors.
COMMANDS = """
import contextlib, io, json, sys

from emberflow import cli

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["emberflow", *arguments]
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, output.getvalue(), errors.getvalue()]))
"""

WITHOUT_EXTRAS = """
import emberflow as ef
from shop import flow

words = ["ash", "Ash", "ember"]
class Watching(ef.LiveQueryListener): ...

print(sorted(ef.run(flow, words=words)["counts"]))
print(sorted(ef.simulate(flow, seed=1, crashes=1, words=words).outputs["counts"]))
print(ef.verify(flow, seeds=5, words=words).flow)
sink = ef.sinks.Files("out")
sink.open(0).store(ef.sinks.StoredBundle("counts", 0, ef.GlobalTime(7, 0), [1, 2]))
print(sink.payloads())
print(ef.failure_of(ValueError()))
"""

AUDIT = ["audit", "shop", "--front", "words=text:words.txt", "--sink"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseInstall:
    install = BaseInstall(tmp_path_factory.mktemp("base") / "venv")
    (install.folder / "shop.py").write_text(FLOW)
    (install.folder / "words.txt").write_text("ash\nAsh\nember\n")
    return install


def ended(base: BaseInstall, *commands: list[str]) -> list[tuple[int, str, str]]:
    """How each command ended. One process runs them all: most of the time goes into its start."""
    done = base.run("-c", COMMANDS, json.dumps(commands))
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


class TestWithoutExtras:
    def test_no_optional_package_is_there(self, base: BaseInstall) -> None:
        modules = [package.module for packages in EXTRAS.values() for package in packages]
        program = f"""
import importlib, contextlib
for module in {modules!r}:
    with contextlib.suppress(ModuleNotFoundError):
        print(importlib.import_module(module))
"""
        done = base.run("-c", program)
        assert (done.stdout, done.stderr) == ("", "")

    def test_flows_are_run_simulated_verified_and_stored(self, base: BaseInstall) -> None:
        done = base.run("-c", WITHOUT_EXTRAS)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == ["[1, 1, 2]", "[1, 1, 2]", "count", "[1, 2]", "None"]

    def test_the_program_starts(self, base: BaseInstall) -> None:
        done = base.run("-m", "emberflow", "--version")
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            f"emberflow {ef.__version__}\n",
            "",
        )

    def test_every_command_has_its_help(self, base: BaseInstall) -> None:
        names = [
            "graph",
            "diff",
            "upgrade",
            "rescale",
            "rebalance",
            "top",
            "ui",
            "verify",
            "run",
            "audit",
            "doctor",
        ]
        (code, listed, errors), *helps = ended(
            base, ["--help"], *([name, "--help"] for name in names)
        )
        assert (code, errors) == (0, "")
        assert re.findall(r"^│ ([a-z]+) ", listed, re.MULTILINE) == names
        for name, (code, help, errors) in zip(names, helps, strict=True):
            assert (code, errors) == (0, "")
            assert f"Usage: emberflow {name} " in help

    def test_flows_are_drawn_and_verified_from_the_command_line(self, base: BaseInstall) -> None:
        drawn, verified = ended(
            base,
            ["graph", "shop", "--text"],
            ["verify", "shop", "--front", "words=words.txt", "--seeds", "5"],
        )
        assert drawn[::2] == verified[::2] == (0, "")
        assert drawn[1].startswith("flow count\n  front words\n")
        assert verified[1].startswith("flow 'count'")


class TestWhatNeedsAnExtra:
    def test_names_it_in_one_sentence(self, base: BaseInstall) -> None:
        done = base.run("-c", CALLS)
        assert (done.returncode, done.stderr) == (0, "")
        raised = json.loads(done.stdout)
        assert {
            name: kind for name, (kind, _) in raised.items() if kind != "MissingExtraError"
        } == {}
        told = {name: message for name, (_, message) in raised.items()}
        assert told["flow.live"] == (
            "flow.live needs the extra 'spark' ('pyspark' is not installed): "
            "pip install 'emberflow[spark]'"
        )
        sentence = re.compile(
            r"(.*) needs the extra '(\w+)' \('[\w.]+' is not installed\): "
            r"pip install 'emberflow\[\2\]'"
        )
        found = {name: sentence.fullmatch(message) for name, message in told.items()}
        assert {name: match and match.groups() for name, match in found.items()} == {
            name: (name, extra)
            for extra, names in {
                "spark": [
                    "flow.live",
                    "flow.batch",
                    "flow.backfill",
                    "ef.rows",
                    "ef.payloads",
                    "ef.front_log",
                    "the format 'parquet'",
                    "the data source 'emberflow'",
                ],
                "kafka": ["fronts.Kafka", "sinks.Kafka", "kafka.Avro", "kafka.Protobuf"],
                "postgres": ["sinks.Postgres"],
                "registry": ["kafka.Registry"],
                "delta": ["sinks.Delta", "fronts.Delta"],
                "iceberg": ["sinks.Iceberg"],
                "s3": ["the location 's3://bucket/x'"],
                "hdfs": ["a location on HDFS"],
            }.items()
            for name in names
        }

    def test_so_do_commands(self, base: BaseInstall) -> None:
        asked = {
            "emberflow run needs the extra 'spark' ('pyspark' is not installed): "
            "pip install 'emberflow[spark]'": [
                *("run", "shop", "--front", "words=text:in", "--sink", "counts=console")
            ],
            "drawing an SVG needs the extra 'graph' ('graphviz' is not installed): "
            "pip install 'emberflow[graph]'": ["graph", "shop", "--svg", "shop.svg"],
            "the format 'parquet' needs the extra 'spark' ('pyarrow' is not installed): "
            "pip install 'emberflow[spark]'": [*AUDIT, "counts=parquet:out"],
            "sinks.Postgres needs the extra 'postgres' ('psycopg' is not installed): "
            "pip install 'emberflow[postgres]'": [*AUDIT, "counts=postgres:dbname=x?table=counts"],
        }
        outcomes = ended(base, *asked.values())
        assert [(code, errors) for code, _, errors in outcomes] == [
            (1, f"error: {problem}\n") for problem in asked
        ]

    def test_so_does_a_module_with_a_flow(self, base: BaseInstall) -> None:
        (base.folder / "stored.py").write_text(
            f"{FLOW}\nsink = ef.sinks.Postgres('dbname=shop', 'counts')\n"
        )
        (base.folder / "sparkling.py").write_text(f"import pyspark\n{FLOW}")
        stored, sparkling = ended(base, ["graph", "stored"], ["graph", "sparkling"])
        assert stored[::2] == (
            1,
            "error: importing stored failed: MissingExtraError: sinks.Postgres needs the extra "
            "'postgres' ('psycopg' is not installed): pip install 'emberflow[postgres]', raised from "
            "stored.py:12\n",
        )
        assert sparkling[0] == 1
        assert "No module named 'pyspark', raised from sparkling.py:1." in sparkling[2]
        assert "): pip install 'emberflow[spark]', or fix the import." in sparkling[2]


def test_a_spark_that_finds_the_base_install_can_still_list_its_data_sources(
    tmp_path: Path,
) -> None:
    """Spark imports every module whose name begins with pyspark_, and finds none if one raises."""
    program = """
import pyspark_emberflow
print(pyspark_emberflow.DefaultSource.name())
try:
    pyspark_emberflow.DefaultSource({})
except ImportError as error:
    print(error)
"""
    done = BaseInstall(tmp_path / "venv", "pyspark").run("-c", program)
    assert done.stdout.splitlines() == [
        "emberflow",
        "the data source 'emberflow' needs the extra 'spark' ('pyarrow' is not installed): "
        "pip install 'emberflow[spark]'",
    ]


def test_the_extras_are_those_that_the_project_declares() -> None:
    declared = dict(PROJECT["optional-dependencies"])
    del declared["dev"]
    (all_of_them,) = map(Requirement, declared.pop("all"))
    assert (all_of_them.name, all_of_them.extras) == ("emberflow", set(declared))
    assert EXTRAS.keys() == declared.keys()
    for extra, packages in EXTRAS.items():
        known = {
            package.name: {">=": package.at_least} | ({"<": package.below} if package.below else {})
            for package in packages
        }
        assert known == {
            requirement.name: {bound.operator: bound.version for bound in requirement.specifier}
            for requirement in map(Requirement, declared[extra])
        }


def test_a_module_is_of_the_extra_that_installs_it() -> None:
    assert extra_of("zmq") == "spark"
    assert extra_of("pyspark.sql.types") == "spark"
    assert extra_of("confluent_kafka") == "kafka"
    assert extra_of("sklearn") is None


def test_a_package_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("raise ImportError('libfire.so is missing')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(
        ef.MissingExtraError, match=r"'broken_package' cannot be imported: libfire\.so is missing"
    ) as caught:
        need("broken_package", extra="spark", what="flow.live")
    assert isinstance(caught.value, ImportError)
