"""Run all benchmarks, or those that are named.

python bench/run.py [hashing] [persistent] [engine] [live] [batch]
python bench/run.py live --only throughput
python bench/run.py exactly_once [--only latency] [--quick]
python bench/run.py transactions [--only bank] [--quick]
python bench/run.py disorder [--only partitions] [--quick]
python bench/run.py speculation [--only model] [--quick]
python bench/run.py upgrade [--only index] [--quick]
python bench/run.py elastic [--quick]
python bench/run.py scaling [--only workers] [--quick]
python bench/run.py nexmark [--only throughput] [--query q3] [--quick]
python bench/run.py state [--only 5] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from emberflow.runners.bars.terminal import bars
from emberflow.work import watched

BENCHMARKS = ("hashing", "persistent", "engine", "live", "batch")
#: Not among those that run by default: they take long.
EXACTLY_ONCE = "exactly_once"
TRANSACTIONS = "transactions"
DISORDER = "disorder"
SPECULATION = "speculation"
UPGRADE = "upgrade"
ELASTIC = "elastic"
SCALING = "scaling"
NEXMARK = "nexmark"
STATE = "state"
#: Where the module of a benchmark has another name.
MODULES = {NEXMARK: "nexmark_bench"}
PARTS = {
    "live": ("latency", "throughput", "overload", "stages"),
    EXACTLY_ONCE: ("latency", "kills", "lost", "runtime", "cuts"),
    TRANSACTIONS: (
        "bank",
        "states",
        "keys",
        "workers",
        "queries",
        "violations",
        "crowds",
        "stages",
    ),
    DISORDER: (
        "lateness",
        "hot_key",
        "partitions",
        "event_time",
        "kafka",
        "lag",
        "latency",
        "ledger",
    ),
    SPECULATION: ("model", "live"),
    SCALING: ("workers", "rates", "sampling", "ranges", "acks", "driver", "model"),
    NEXMARK: ("throughput", "latency"),
    UPGRADE: ("index", "keys", "million"),
    STATE: ("memory", "1", "5", "20", "cuts", "restore", "spark"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="benchmark", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--only", action="append", help="this part of what is named; may be repeated"
    )
    parser.add_argument(
        "--query", action="append", default=[], help="of nexmark, this query; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - {*BENCHMARKS, *PARTS, ELASTIC})
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    names = arguments.names or BENCHMARKS
    if arguments.query and names != [NEXMARK]:
        parser.error("--query is for nexmark alone")
    if arguments.only:
        of = [name for name in names if name in PARTS]
        if len(of) != 1 or not set(arguments.only) <= set(PARTS[of[0]]):
            parts = "; ".join(f"{name}: {', '.join(own)}" for name, own in PARTS.items())
            parser.error(f"--only chooses parts of one benchmark that is named: {parts}")
    sys.path.insert(0, str(Path(__file__).parent))
    with bars():
        for name in watched("benchmarks", names, len(names)):
            _run(name, arguments)


def _run(name: str, arguments: argparse.Namespace) -> None:
    print(f"\n# {name}\n", flush=True)
    if name == "live":
        import_module(name).main(arguments.only or PARTS[name])
    elif name == NEXMARK:
        module = import_module(MODULES[name])
        module.main(arguments.only or PARTS[name], quick=arguments.quick, queries=arguments.query)
    elif name == ELASTIC:
        import_module(name).main(quick=arguments.quick)
    elif name in PARTS:
        module = import_module(MODULES.get(name, name))
        module.main(arguments.only or PARTS[name], quick=arguments.quick)
    else:
        import_module(name).main()


if __name__ == "__main__":
    main()
