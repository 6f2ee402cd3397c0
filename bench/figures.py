"""Saves plots as PNGs under bench/plots/. Without matplotlib there are only the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "plots"


def drawn(
    name: str, draw: Callable[[list[Any]], None], *, rows: int = 1, columns: int = 1, width: int = 9
) -> None:
    """Draw on this many axes and save the plot under a name."""
    try:
        import matplotlib
    except ImportError:
        print(f"  no plot of {name}: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width, 4.5 * rows), layout="constrained", squeeze=False
    )
    draw([one for row in axes for one in row])
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"  plot: {path}")
