"""Fronts and sinks from a command line: ``NAME=KIND:PLACE``, and ``?key=value&...`` behind it.

All of it is checked, against the flow too, before Spark takes its seconds to start.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from emberflow import fronts, sinks
from emberflow.checkpoint.hdfs import is_hdfs
from emberflow.checkpoint.objects import is_object_url
from emberflow.errors import LATE_SINK, InputError, OnError, beginning
from emberflow.fronts import Front
from emberflow.graph.nodes import Graph, with_late_sink
from emberflow.kafka import Avro, Registry
from emberflow.kafka.codecs import CodecLike
from emberflow.rows.plain import to_json
from emberflow.runners.diversion import known_sinks
from emberflow.values.times import TimeError, checked_duration, milliseconds, seconds

FRONT_FORMS = (
    "files:FOLDER (JSON Lines; also s3://BUCKET/PATH), text:FOLDER, socket:HOST:PORT, "
    "kafka://HOST:PORT/TOPIC, delta:TABLE or structured"
)
SINK_FORMS = (
    "files:FOLDER (JSON Lines; also s3://BUCKET/PATH), parquet:FOLDER, delta:TABLE, iceberg:NAMESPACE.TABLE, "
    "postgres:DSN?table=NAME, kafka://HOST:PORT/TOPIC, structured or console"
)


class _Given(NamedTuple):
    """A front or a sink as it was written, taken apart."""

    role: str  # front or sink
    name: str
    kind: str
    place: str

    def wrong(self, problem: str) -> InputError:
        return InputError(f"{self.role} {self.name!r}: {problem}")

    def options(self, *known: str) -> tuple[str, dict[str, str]]:
        """The place without its options, and those that are known; the others stay with it."""
        place, mark, query = self.place.rpartition("?")
        if not mark:
            return self.place, {}
        pairs = parse_qsl(query, keep_blank_values=True)
        others = urlencode([(key, value) for key, value in pairs if key not in known])
        found = {key: value for key, value in pairs if key in known}
        return f"{place}?{others}" if others else place, found


def given_fronts(
    graph: Graph,
    specs: Sequence[str],
    *,
    more: Mapping[str, Callable[[str, str], Any]] | None = None,
    only: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Where each front of the flow reads, from one ``NAME=KIND:PLACE`` each.

    ``more`` are further kinds: functions of the front's name and of the place. ``only`` are the
    fronts that are asked for, if not all.

    >>> import emberflow as ef
    >>> flow = ef.Flow("shout")
    >>> flow.front("words").map(str.upper).sink("loud")
    >>> given_fronts(flow.graph(), ["words=ftp:topic"])
    Traceback (most recent call last):
    emberflow.errors.InputError: front 'words': there is no kind 'ftp'. Give it as files:FOLDER
    (JSON Lines; also s3://BUCKET/PATH), text:FOLDER, socket:HOST:PORT, kafka://HOST:PORT/TOPIC,
    delta:TABLE or structured.
    """
    kinds: dict[str, Callable[[_Given], Any]] = {
        "files": lambda given: _files_front(given, "jsonl"),
        "text": lambda given: _files_front(given, "text"),
        "socket": _socket_front,
        "kafka": _kafka_front,
        "delta": _delta_front,
        "structured": _structured_front,
    }
    for kind, make in (more or {}).items():
        kinds[kind] = lambda given, make=make: make(given.name, given.place)  # type: ignore[misc]
    known = list(graph.fronts if only is None else only)
    return _made("front", graph, known, specs, kinds, FRONT_FORMS)


def given_sinks(graph: Graph, specs: Sequence[str], on_error: OnError = "fail") -> dict[str, Any]:
    """Where each sink of the flow puts its output, from one ``NAME=KIND:PLACE`` each."""
    names = [spec.partition("=")[0] for spec in specs]
    if LATE_SINK in names and LATE_SINK not in graph.sinks:
        graph = with_late_sink(graph)
    known = known_sinks(
        graph, on_error, names, give="--sink errors=...", divert="--on-error divert"
    )
    kinds: dict[str, Callable[[_Given], Any]] = {
        "files": lambda given: _files_sink(given, "jsonl"),
        "parquet": lambda given: _files_sink(given, "parquet"),
        "delta": _delta_sink,
        "iceberg": _iceberg_sink,
        "postgres": _postgres_sink,
        "kafka": _kafka_sink,
        "structured": _structured_sink,
        "console": _console_sink,
    }
    return _made("sink", graph, known, specs, kinds, SINK_FORMS)


def _made(
    role: str,
    graph: Graph,
    known: list[str],
    specs: Sequence[str],
    kinds: Mapping[str, Callable[[_Given], Any]],
    forms: str,
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for spec in specs:
        name, equals, rest = spec.partition("=")
        # A place may hold a password. Without NAME= it stands where the name is expected.
        is_place = name not in known and (":" in name or " " in rest.partition(":")[0])
        if not (name and equals and rest) or is_place:
            raise InputError(
                f"--{role} takes NAME=KIND:PLACE, got {beginning(spec)}. A {role} is {forms}."
            )
        kind, _, place = rest.partition(":")
        given = _Given(role, name, kind, place)
        if name not in known:
            names = ", ".join(map(repr, known))
            raise InputError(f"flow {graph.flow!r} has no {role} {name!r}; it has {names}.")
        if name in made:
            raise given.wrong("it is given twice.")
        if kind not in kinds:
            raise given.wrong(f"there is no kind {beginning(kind)}. Give it as {forms}.")
        made[name] = kinds[kind](given)
    for name in known:
        if name not in made:
            raise InputError(
                f"flow {graph.flow!r}: {role} {name!r} is not given. "
                f"Add --{role} {name}=..., with {forms}."
            )
    return made


def _folder(given: _Given) -> str:
    if not given.place:
        raise given.wrong(f"which folder? Write {given.kind}:FOLDER.")
    if is_object_url(given.place) or (is_hdfs(given.place) and given.role == "sink"):
        return given.place
    # Workers may run in another folder than this process.
    return str(Path(given.place).expanduser().resolve())


def _files_front(given: _Given, format: str) -> Front:
    place, options = given.options("time", "pattern", "until_end", "unit", *_RULE)
    return fronts.Files(
        _folder(given._replace(place=place)),
        format=format,
        pattern=options.get("pattern", "*"),
        time=options.get("time"),
        until_end=_is_true(given, options, "until_end", "false"),
        **_rule(given, options),
    )


#: Options of the rule of event time.
_RULE = ("disorder", "ahead", "on_late")


def _rule(given: _Given, options: Mapping[str, str]) -> dict[str, Any]:
    rule: dict[str, Any] = {key: options[key] for key in _RULE if key in options}
    if given.kind != "kafka" and "unit" in options:
        rule["unit"] = options["unit"]
    for key in ("disorder", "ahead"):
        if key in rule and rule[key].isdecimal():
            rule[key] = int(rule[key])
        elif key in rule:
            try:
                checked_duration(rule[key])
            except TimeError as error:
                raise given.wrong(f"{key}: {error}") from None
    return rule


def _socket_front(given: _Given) -> Front:
    place, options = given.options("time", "format", "probe", "unit", *_RULE)
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise given.wrong(
            f"write socket:HOST:PORT, as in socket:localhost:9999, not socket:{given.place}."
        )
    return fronts.Socket(
        host,
        int(port),
        format=options.get("format", "text"),
        time=options.get("time"),
        probe=_is_true(given, options, "probe", "true"),
        **_rule(given, options),
    )


def _structured_front(given: _Given) -> Front:
    column, options = given.options("time", "unit", *_RULE)
    known: dict[str, Any] = {key: options[key] for key in ("time",) if key in options}
    return fronts.Structured(column or None, **known, **_rule(given, options))


def _structured_sink(given: _Given) -> Any:
    return sinks.Structured(given.place or None)


def _files_sink(given: _Given, format: str) -> Any:
    place, options = given.options("commit_every")
    return sinks.Files(
        _folder(given._replace(place=place)), format=format, **_commit_every(given, options)
    )


#: Options of a sink whose output is rows of a table.
_TABLE = ("upsert", "evolve", "commit_every", "name")


def _table_options(given: _Given, options: Mapping[str, str]) -> dict[str, Any]:
    known = {key: options[key] for key in ("name",) if key in options}
    return {
        **known,
        **_commit_every(given, options),
        "upsert": [name for name in options.get("upsert", "").split(",") if name],
        "evolve": _is_true(given, options, "evolve", "false"),
    }


def _commit_every(given: _Given, options: Mapping[str, str]) -> dict[str, float]:
    if "commit_every" not in options:
        return {}
    try:
        return {"commit_every": float(options["commit_every"])}
    except ValueError:
        where = f"sink {given.name!r}: commit_every"
        return {"commit_every": seconds(options["commit_every"], where)}


def _delta_sink(given: _Given) -> Any:
    place, options = given.options(*_TABLE)
    if "://" not in place:
        place = _folder(given._replace(place=place))
    return sinks.Delta(place, **_table_options(given, options))


def _iceberg_sink(given: _Given) -> Any:
    place, _, query = given.place.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    config = {key: value for key, value in pairs.items() if key.startswith("catalog.")}
    options = {key: value for key, value in pairs.items() if key not in config}
    strange = [key for key in options if key not in ("catalog", *_TABLE)]
    if not place or strange:
        raise given.wrong(
            "write iceberg:NAMESPACE.TABLE, as in iceberg:shop.changes?catalog=prod. It has the options "
            f"catalog, {', '.join(_TABLE)}, and catalog.NAME for a property of the catalog, as in "
            "catalog.type=sql."
        )
    return sinks.Iceberg(
        place,
        catalog=options.get("catalog", "default"),
        config={key.removeprefix("catalog."): value for key, value in config.items()},
        **_table_options(given, options),
    )


def _kafka_topic(given: _Given) -> tuple[str, str, dict[str, str], dict[str, str]]:
    """Servers, topic, options of ours, and those for librdkafka, which begin with ``kafka.``."""
    place, mark, query = given.place.partition("?")
    servers, slash, topic = place.removeprefix("//").partition("/")
    if not place.startswith("//") or not servers or not slash or not topic or "/" in topic:
        raise given.wrong(
            f"write kafka://HOST:PORT/TOPIC, as in kafka://localhost:9092/docs{_unlike(place)}."
        )
    pairs = dict(parse_qsl(query, keep_blank_values=True)) if mark else {}
    config = {key: value for key, value in pairs.items() if key.startswith("kafka.")}
    return servers, topic, {key: pairs[key] for key in pairs if key not in config}, config


def _unlike(place: str) -> str:
    """A place that is not as it should be, to be shown if there can be no password in it."""
    return f", not kafka:{place}" if re.fullmatch(r"[\w./:,-]*", place) else ""


def _check_known(given: _Given, options: Mapping[str, str], *known: str) -> None:
    for key in options:
        if key in known:
            continue
        if not options[key]:  # perhaps the end of a password
            raise given.wrong("an option has no value. Write & within a value as %26.")
        raise given.wrong(
            f"a kafka {given.role} has no option {key!r}; it has {', '.join(known)}, and "
            f"kafka.NAME for NAME of librdkafka, as in kafka.security.protocol=SSL."
        )


def _kafka_front(given: _Given) -> Front:
    servers, topic, options, config = _kafka_topic(given)
    known = ("time", "value", "key", "registry", "unit", "idle_ms", "until_end")
    _check_known(given, options, *known, *_RULE)
    more: dict[str, Any] = {key: options[key] for key in ("time", "unit") if key in options}
    if "key" in options:
        more["key"] = _codec(given, options["key"], options)
    more |= _idle_ms(given, options)
    return fronts.Kafka(
        servers,
        topic,
        value=_codec(given, options.get("value", "json"), options),
        until_end=_is_true(given, options, "until_end", "false"),
        config=config,
        **more,
        **_rule(given, options),
    )


def _codec(given: _Given, name: str, options: Mapping[str, str]) -> CodecLike:
    """A codec by its name. Avro has a registry, and where it is written a file with the schema."""
    if name != "avro":
        return name
    if "registry" not in options or (given.role == "sink" and "schema" not in options):
        more = ", and the file of the schema: schema=PATH" if given.role == "sink" else ""
        raise given.wrong(f"avro needs the URL of a registry: registry=http://HOST:PORT{more}.")
    schema = None
    if "schema" in options:
        try:
            schema = Path(options["schema"]).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise given.wrong(f"the schema {options['schema']!r} cannot be read: {error}") from None
    return Avro(schema, registry=Registry(options["registry"]))


def _idle_ms(given: _Given, options: Mapping[str, str]) -> dict[str, Any]:
    if "idle_ms" not in options:
        return {}
    idle = options["idle_ms"]
    try:
        return {"idle_ms": None if idle == "none" else float(idle)}
    except ValueError:
        return {"idle_ms": milliseconds(idle, f"front {given.name!r}: idle_ms")}


def _delta_front(given: _Given) -> Front:
    place, options = given.options(
        "key", "time", "begin", "snapshot", "idle_ms", "until_end", "unit", *_RULE
    )
    if "://" not in place:
        place = _folder(given._replace(place=place))
    begin = options.get("begin", "0")
    if not begin.isdecimal():
        raise given.wrong(f"begin is a number, got {begin!r}.")
    return fronts.Delta(
        place,
        key=_delta_key(options.get("key", "")),
        time=options.get("time", "timestamp"),
        begin=int(begin),
        snapshot=_is_true(given, options, "snapshot", "false"),
        until_end=_is_true(given, options, "until_end", "false"),
        **_idle_ms(given, options),
        **_rule(given, options),
    )


def _delta_key(key: str) -> str | list[str] | None:
    """Columns with commas between them; one is the key itself, and several are a tuple."""
    return key.split(",") if "," in key else key or None


def _kafka_sink(given: _Given) -> Any:
    servers, topic, options, config = _kafka_topic(given)
    _check_known(given, options, "value", "key", "registry", "schema", "transactional", "name")
    return sinks.Kafka(
        servers,
        topic,
        value=_codec(given, options.get("value", "json"), options),
        key=options.get("key"),
        transactional=_is_true(given, options, "transactional", "true"),
        name=options.get("name"),
        config=config,
    )


def _is_true(given: _Given, options: Mapping[str, str], key: str, default: str) -> bool:
    value = options.get(key, default).lower()
    if value not in ("true", "false"):
        raise given.wrong(f"{key} is true or false, got {value!r}.")
    return value == "true"


def _postgres_sink(given: _Given) -> Any:
    dsn, options = given.options("table")
    if not dsn or not options.get("table"):
        raise given.wrong(
            "write postgres:DSN?table=NAME, as in "
            "postgres:postgresql://ada@localhost/shop?table=changes."
        )
    return sinks.Postgres(dsn, options["table"])


def _console_sink(given: _Given) -> Any:
    if given.place:
        raise given.wrong(f"console takes nothing more, got {given.place!r}.")

    def printed(bundle: sinks.StoredBundle) -> None:
        sys.stdout.writelines(f"{_line(payload)}\n" for payload in bundle.payloads)
        sys.stdout.flush()

    return sinks.Callback(printed)


def _line(payload: Any) -> str:
    """A payload as JSON, so that the next command in a pipe can read it; else as Python has it."""
    try:
        return to_json(payload)
    except sinks.PayloadError:
        return repr(payload)
