"""PNGs of what was measured, under bench/plots/. Without matplotlib there are only the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "plots"


def bars(name: str, figures: Mapping[str, Sequence[float]], heads: list[str], unit: str) -> None:
    """A group of bars for each label, one bar for each head."""
    with_axes = _axes(name)
    if with_axes is None:
        return
    figure, axes = with_axes
    height = 0.8 / len(heads)
    for number, head in enumerate(heads):
        places = [line + number * height for line in range(len(figures))]
        axes.barh(places, [values[number] for values in figures.values()], height, label=head)
    axes.set_yticks([line + 0.4 - height / 2 for line in range(len(figures))], list(figures))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.legend()
    _save(figure, name)


def over_time(
    name: str, runs: Mapping[str, tuple[Sequence[tuple[float, float]], Sequence[float]]]
) -> None:
    """Latency of each document by when it was stored; kills are lines."""
    with_axes = _axes(name, rows=len(runs))
    if with_axes is None:
        return
    figure, all_axes = with_axes
    for axes, (label, (latencies, kills)) in zip(all_axes, runs.items(), strict=True):
        axes.plot([at for at, _ in latencies], [ms for _, ms in latencies], ".", markersize=2)
        for kill in kills:
            axes.axvline(kill, color="red", linewidth=0.8)
        axes.set_yscale("log")
        axes.set_ylabel("ms")
        axes.set_title(label)
    all_axes[-1].set_xlabel("seconds; a worker is killed at each red line")
    _save(figure, name)


def curves(
    name: str,
    across: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    label_across: str,
    label_up: str,
) -> None:
    with_axes = _axes(name)
    if with_axes is None:
        return
    figure, axes = with_axes
    for label, values in lines.items():
        axes.plot(across, values, marker="o", label=label)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label_across)
    axes.set_ylabel(label_up)
    axes.legend()
    _save(figure, name)


def _axes(name: str, rows: int = 1) -> tuple[Any, Any] | None:
    try:
        import matplotlib
    except ImportError:
        print(f"  no plot of {name}: matplotlib is not installed")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, 1, figsize=(9, 4.5 * rows), layout="constrained")
    return figure, [axes] if name == "kills" and rows == 1 else axes


def _save(figure: Any, name: str) -> None:
    from matplotlib import pyplot

    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"exactly-once-{name}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"  plot: {path}")
