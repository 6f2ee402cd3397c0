"""PNGs of what was measured, under bench/plots/. Without matplotlib there are only the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exactly_once.plots import FOLDER

from transactions.measuring import SHARE, Figures


def bars(name: str, figures: Mapping[str, float], unit: str) -> None:
    made = _made(name, 1)
    if made is None:
        return
    figure, (axes,) = made
    axes.barh(list(figures), list(figures.values()))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    _save(figure, name)


def rates_and_latencies(
    name: str,
    across: Sequence[float],
    lines: Mapping[str, Sequence[Figures]],
    label_across: str,
    *,
    log: bool = False,
) -> None:
    """Two plots beside each other: elements a second in the burst, and mean latency behind it."""
    made = _made(name, 2)
    if made is None:
        return
    figure, (rates, latencies) = made
    for label, found in lines.items():
        shown = across[: len(found)]
        rates.plot(shown, [each.rate for each in found], marker="o", label=label)
        latencies.plot(shown, [each.mean for each in found], marker="o", label=label)
    rates.set_ylabel("transactions a second")
    latencies.set_ylabel(f"mean ms at {SHARE:.0%} of that")
    for axes in (rates, latencies):
        axes.set_xlabel(label_across)
        axes.set_ylim(bottom=0)
        if log:
            axes.set_xscale("log")
    if len(lines) > 1:
        rates.legend()
    _save(figure, name)


def _made(name: str, columns: int) -> tuple[Any, Any] | None:
    try:
        import matplotlib
    except ImportError:
        print(f"  no plot of {name}: matplotlib is not installed")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, columns, figsize=(5 * columns + 2, 4), layout="constrained", squeeze=False
    )
    return figure, axes[0]


def _save(figure: Any, name: str) -> None:
    from matplotlib import pyplot

    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"transactions-{name}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"  plot: {path}")
