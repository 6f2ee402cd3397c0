"""Plots of transactions: rates as bars, and rates beside latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from figures import drawn

from transactions.measuring import SHARE, Figures


def bars(name: str, figures: Mapping[str, float], unit: str) -> None:
    def draw(all_axes: list[Any]) -> None:
        (axes,) = all_axes
        axes.barh(list(figures), list(figures.values()))
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel(unit)

    drawn(f"transactions-{name}", draw, width=7)


def rates_and_latencies(
    name: str,
    across: Sequence[float],
    lines: Mapping[str, Sequence[Figures]],
    label_across: str,
    *,
    log: bool = False,
) -> None:
    """Two plots side by side: elements per second in the burst, and the mean latency after it."""

    def draw(all_axes: list[Any]) -> None:
        rates, latencies = all_axes
        for label, found in lines.items():
            shown = across[: len(found)]
            rates.plot(shown, [each.rate for each in found], marker="o", label=label)
            latencies.plot(shown, [each.mean for each in found], marker="o", label=label)
        rates.set_ylabel("transactions a second")
        latencies.set_ylabel(f"mean ms at {SHARE:.0%} of that")
        for axes in all_axes:
            axes.set_xlabel(label_across)
            axes.set_ylim(bottom=0)
            if log:
                axes.set_xscale("log")
        if len(lines) > 1:
            rates.legend()

    drawn(f"transactions-{name}", draw, columns=2, width=12)
