"""Runs queries in Flink's SQL and prints a line of JSON for each: the script of `flink_rates`.

    python flink_job.py FOLDER PARALLELISM

FOLDER has the events twice, in ``few`` and in ``all``, each as files of JSON Lines, and ``side_input.csv``.
The names of queries come as lines. For each a line has the seconds of a run on the few and of a run on all, by
the clock of Flink's own job manager: without planning, and without the start of the cluster.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from flink_sql import EVENTS, SIDE_INPUT, SQL, VIEWS
from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment

#: The few come first, so that the compiler of the JVM has seen most of the query before.
PARTS = ("few", "all")


def environment(folder: str, parallelism: str) -> Any:
    made = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = made.get_config()
    settings.set("parallelism.default", parallelism)
    settings.set("table.local-time-zone", "UTC")
    settings.set("execution.checkpointing.interval", "1 s")
    settings.set("execution.checkpointing.mode", "EXACTLY_ONCE")
    settings.set("execution.checkpointing.dir", f"file://{folder}/checkpoints")
    made.execute_sql(SIDE_INPUT.format(path=f"{folder}/side_input.csv"))
    for part in PARTS:
        made.execute_sql(EVENTS.format(name=f"events_{part}", path=f"{folder}/{part}"))
    return made


def seconds(made: Any, query: str, part: str) -> float:
    for view, columns in VIEWS.items():
        made.execute_sql(f"DROP TEMPORARY VIEW IF EXISTS {view}")
        made.execute_sql(
            f"CREATE TEMPORARY VIEW {view} AS "
            f"SELECT {columns} FROM events_{part} WHERE kind = '{view}'"
        )
    table = made.sql_query(SQL[query])
    job = table.execute_insert(TableDescriptor.for_connector("blackhole").build()).get_job_client()
    milliseconds: int = job.get_job_execution_result().result().get_net_runtime()
    return milliseconds / 1_000


def main() -> None:
    folder, parallelism = sys.argv[1:]
    made = environment(folder, parallelism)
    for line in sys.stdin:
        query = line.strip()
        try:
            told = {part: seconds(made, query, part) for part in PARTS}
            print(json.dumps({"query": query, **told}), flush=True)
        except Exception as error:
            print(json.dumps({"query": query, "error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
