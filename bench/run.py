"""Run the benchmarks: all of them, or those that are named.

python bench/run.py [hashing] [persistent] [engine] [live] [batch]
python bench/run.py live --only throughput
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

BENCHMARKS = ("hashing", "persistent", "engine", "live", "batch")
LIVE_PARTS = ("latency", "throughput", "overload")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="benchmark", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--only", action="append", choices=LIVE_PARTS, help="this part of 'live'; may be repeated"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    names = arguments.names or BENCHMARKS
    if arguments.only and "live" not in names:
        parser.error("--only chooses parts of 'live', which is not among the benchmarks named")
    sys.path.insert(0, str(Path(__file__).parent))
    for name in names:
        print(f"\n# {name}\n", flush=True)
        if name == "live":
            import_module(name).main(arguments.only or LIVE_PARTS)
        else:
            import_module(name).main()


if __name__ == "__main__":
    main()
