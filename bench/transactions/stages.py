"""Where the processor time of a transfer goes, part by part: see `live.stages`."""

from __future__ import annotations

from live import stages
from pyspark.sql import SparkSession

from transactions import flows

TRANSFERS = 100_000
QUICK_TRANSFERS = 10_000
ACCOUNTS = 100_000


def main(spark: SparkSession | None = None, *, quick: bool = False) -> None:
    count = QUICK_TRANSFERS if quick else TRANSFERS
    given = flows.transfers(count, ACCOUNTS)
    for label, flow, outputs in (
        ("transfers", flows.bank(), 1),
        ("transactions of one update", flows.withdrawals(), 1),
        ("the same by a plain fold", flows.plain_withdrawals(), 1),
        ("separate updates", flows.separate_updates(), 2),
    ):
        run = stages.measured(flow, given, outputs=outputs)
        print(f"{f'where the time goes, {count:,} {label}':52}{'µs of each':>16}")
        stages.tell(run, count)
        items = [worker.statistics(sizes_too=False) for worker in run.workers]
        print(
            f"  {run.messages / count:.3f} frames, {run.bytes_sent / count:.0f} bytes, "
            f"{sum(each.items_sent for each in items) / count:.2f} items sent, "
            f"{sum(each.replays for each in items) / count:.3f} replays a transfer",
            flush=True,
        )


if __name__ == "__main__":
    main()
