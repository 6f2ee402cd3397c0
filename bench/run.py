"""Run the benchmarks: all of them, or those that are named.

python bench/run.py [hashing] [persistent] [engine] [live]
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

BENCHMARKS = ("hashing", "persistent", "engine", "live")


def main(names: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        print(f"\n# {name}\n")
        import_module(name).main()


if __name__ == "__main__":
    main(sys.argv[1:])
