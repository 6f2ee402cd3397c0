"""The extras of the package: which packages each one installs, and the error where one is missing.

Guarantee: where an optional package is not installed, users see one sentence that names the extra to
install (`MissingExtraError`), and no traceback of a failed import.

Why: the base install runs, simulates, verifies and draws flows without Spark. So no module that
``import emberflow`` or ``emberflow --help`` imports may import an optional package at its top.

How: code that needs an optional package calls `need` where the user asks for the feature, before it
imports anything else that needs the package. `EXTRAS` repeats what pyproject.toml declares, because
the metadata of an install does not tell which module a package provides. A test compares the two.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple

from emberflow.errors import MissingExtraError


class Package(NamedTuple):
    """An optional package: its name on PyPI, the module to import, and the versions that fit."""

    name: str
    module: str
    at_least: str
    below: str | None = None


EXTRAS: dict[str, tuple[Package, ...]] = {
    "spark": (
        Package("pyspark", "pyspark", "4.3", "5"),
        Package("numpy", "numpy", "1.26"),
        Package("pandas", "pandas", "2.2", "3"),
        Package("pyarrow", "pyarrow", "18"),
        Package("googleapis-common-protos", "google.rpc.error_details_pb2", "1.71"),
        Package("grpcio", "grpc", "1.76"),
        Package("grpcio-status", "grpc_status", "1.76"),
        Package("protobuf", "google.protobuf", "6"),
        Package("zstandard", "zstandard", "0.25"),
        Package("prometheus-client", "prometheus_client", "0.22"),
        Package("starlette", "starlette", "0.47"),
        Package("uvicorn", "uvicorn", "0.35"),
        Package("pyzmq", "zmq", "26"),
    ),
    "kafka": (
        Package("confluent-kafka", "confluent_kafka", "2.6"),
        Package("fastavro", "fastavro", "1.9"),
        Package("protobuf", "google.protobuf", "6"),
    ),
    "registry": (
        Package("confluent-kafka", "confluent_kafka.schema_registry", "2.6"),
        Package("fastavro", "fastavro", "1.9"),
        Package("protobuf", "google.protobuf", "6"),
    ),
    "delta": (
        Package("deltalake", "deltalake", "1.6", "2"),
        Package("pyarrow", "pyarrow", "18"),
    ),
    "iceberg": (
        Package("pyiceberg", "pyiceberg", "0.12", "0.13"),
        Package("pyarrow", "pyarrow", "18"),
    ),
    "s3": (Package("obstore", "obstore", "0.12", "0.13"),),
    "hdfs": (Package("hdfs-native", "hdfs_native", "0.14.7", "0.15"),),
    "postgres": (Package("psycopg", "psycopg", "3.2"),),
    "graph": (Package("graphviz", "graphviz", "0.20"),),
}


def need(module: str, *others: str, extra: str, what: str) -> ModuleType:
    """Import modules of an extra and return the first; ``what`` is the feature that needs them.

    >>> need("json", extra="spark", what="flow.live").__name__
    'json'
    >>> need("no_such_module", extra="spark", what="flow.live")
    Traceback (most recent call last):
    emberflow.errors.MissingExtraError: flow.live needs the extra 'spark' ('no_such_module' is not
    installed): pip install 'emberflow[spark]'
    """
    found = [_imported(name, extra, what) for name in (module, *others)]
    return found[0]


def _imported(module: str, extra: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the extra {extra!r} ({_reason(error, module)}): {install_command(extra)}"
        ) from error


def _reason(error: ImportError, module: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        # It may be one that the module itself imports.
        return f"{error.name or module!r} is not installed"
    # As psycopg does it where there is no libpq.
    return (
        f"{module!r} cannot be imported: {next(iter(str(error).splitlines()), 'no reason given')}"
    )


def install_command(*extras: str) -> str:
    """
    >>> install_command("kafka", "spark")
    "pip install 'emberflow[kafka,spark]'"
    """
    return f"pip install 'emberflow[{','.join(extras)}]'"


def extra_of(module: str) -> str | None:
    """The extra that installs a module; None where none of them does.

    >>> extra_of("pyspark.sql"), extra_of("numpyro")
    ('spark', None)
    """
    for extra, packages in EXTRAS.items():
        if any(f"{module}.".startswith(f"{package.module}.") for package in packages):
            return extra
    return None
