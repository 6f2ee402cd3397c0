"""Plots of speculation: replays by workers and rate, latency by rate, and where output waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from figures import drawn

from speculation import Figures

#: By the number of workers, documents a second, and the way.
Found: TypeAlias = dict[tuple[int, float, str], Figures]

_TICKS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


def drawn_all(name: str, found: Found, caption: str, *, latency_workers: Sequence[int]) -> None:
    replays(name, found, caption)
    latencies(name, found, caption, latency_workers)
    waits(name, found, caption, latency_workers[-1])


def replays(name: str, found: Found, caption: str) -> None:
    """Items that arrived at barriers for each that left, by the number of workers; a line a rate."""
    ways = ("optimistic", "adaptive")
    workers = sorted({count for count, _, _ in found})

    def draw(all_axes: list[Any]) -> None:
        for axes, way in zip(all_axes, ways, strict=True):
            for rate in sorted({rate for _, rate, _ in found}):
                ratios = [found[count, rate, way].replay_ratio for count in workers]
                axes.plot(range(len(workers)), ratios, marker="o", label=f"{rate} documents/s")
            axes.set_xticks(range(len(workers)), [str(count) for count in workers])
            axes.set_xlabel("workers")
            axes.set_ylabel("replay ratio")
            axes.set_title(way)
            axes.legend()
        bottom = min(axes.get_ylim()[0] for axes in all_axes)
        top = max(axes.get_ylim()[1] for axes in all_axes)
        for axes in all_axes:
            axes.set_ylim(bottom, top)
        all_axes[0].figure.suptitle(f"Replays. {caption}", fontsize=8)

    drawn(f"speculation-{name}-replays", draw, columns=2)


def latencies(name: str, found: Found, caption: str, workers: Sequence[int]) -> None:
    """Latency by rate: a plot for each number of workers, two lines for each way."""

    def draw(all_axes: list[Any]) -> None:
        for axes, count in zip(all_axes, workers, strict=True):
            rates = sorted({rate for own, rate, _ in found if own == count})
            for number, way in enumerate(_ways(found)):
                own = [found[count, rate, way] for rate in rates]
                color = f"C{number}"
                axes.plot(rates, [one.p50 for one in own], "o-", color=color, label=f"{way}, p50")
                axes.plot(rates, [one.p99 for one in own], "x:", color=color, label=f"{way}, p99")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(rates, [str(rate) for rate in rates], minor=False)
            axes.set_xlabel("documents a second")
            axes.set_ylabel("ms")
            axes.set_title(f"{count} worker{'s' if count > 1 else ''}")
        low = min(axes.get_ylim()[0] for axes in all_axes)
        high = max(axes.get_ylim()[1] for axes in all_axes)
        ticks = [tick for tick in _TICKS_MS if low <= tick <= high]
        for axes in all_axes:
            axes.set_ylim(low, high)
            axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
        all_axes[0].legend(fontsize=7)
        all_axes[0].figure.suptitle(f"Latency. {caption}", fontsize=8)

    drawn(f"speculation-{name}-latency", draw, columns=len(workers), width=4 * len(workers))


def waits(name: str, found: Found, caption: str, workers: int) -> None:
    """Time in buffers and at the barrier, by rate and way."""
    rates = sorted({rate for own, rate, _ in found if own == workers})

    def draw(all_axes: list[Any]) -> None:
        (axes,) = all_axes
        bars = [(rate, way) for rate in rates for way in _ways(found)]
        buffers = [found[workers, rate, way].buffers for rate, way in bars]
        barriers = [found[workers, rate, way].barriers for rate, way in bars]
        places = range(len(bars))
        axes.barh(places, buffers, label="in buffers")
        axes.barh(places, barriers, left=buffers, label="at the barrier")
        axes.set_yticks(places, [f"{way}, {rate}/s" for rate, way in bars])
        axes.invert_yaxis()
        axes.set_xlabel(f"ms that a change record waits on average, {workers} workers")
        axes.legend()
        axes.figure.suptitle(f"Where output waits. {caption}", fontsize=8)

    drawn(f"speculation-{name}-waits", draw)


def _ways(found: Found) -> list[str]:
    return list(dict.fromkeys(way for _, _, way in found))
