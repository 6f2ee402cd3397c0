"""A moving average per sensor, in two ways: of the last readings, and of the last minutes.

- By number: `group(window=3)` is a moving window; a `map` takes the mean.
- By time: `window(Sliding(10, slide=5))` covers 10 minutes, and a new window begins every 5. With
  `emit="close"` each window gives one output, when it ends.

Time is the time of the reading, never that of the wall clock. The kitchen sent its reading of minute 4
last. It counts at its own time, in the last three readings as well as in the window from 0 to 10. The
flow needs no allowed lateness and no watermark for that.

    $ python examples/moving_average.py
    mean of the last 3 readings
      minute  1  cellar   10.0
      minute  2  kitchen  20.0
      minute  4  kitchen  21.0
      minute  7  kitchen  22.0
      minute  8  cellar   11.0
      minute 12  kitchen  24.0

    mean of 10 minutes, every 5
      from -5 to  5  cellar   10.0
      from -5 to  5  kitchen  21.0
      from  0 to 10  cellar   11.0
      from  0 to 10  kitchen  22.0
      from  5 to 15  kitchen  25.0
      from  5 to 15  cellar   12.0
      from 10 to 20  kitchen  26.0
"""

from statistics import fmean
from typing import NamedTuple

import emberflow as ef


class Reading(NamedTuple):
    minute: int
    sensor: str
    celsius: float


READINGS = [
    Reading(1, "cellar", 10.0),
    Reading(2, "kitchen", 20.0),
    Reading(7, "kitchen", 24.0),
    Reading(8, "cellar", 12.0),
    Reading(12, "kitchen", 26.0),
    Reading(4, "kitchen", 22.0),  # came late
]


def average(readings: tuple[Reading, ...]) -> Reading:
    return readings[-1]._replace(celsius=fmean(reading.celsius for reading in readings))


flow = ef.Flow("moving average")
readings = flow.front("readings").key_by(lambda reading: reading.sensor)
readings.group(window=3).map(average).sink("by_number")
readings.window(ef.Sliding(10, slide=5), emit="close").mean(
    of=lambda reading: reading.celsius
).sink("by_time")


def main() -> None:
    outputs = ef.run(flow, readings=[ef.At(reading.minute, reading) for reading in READINGS])
    print("mean of the last 3 readings")
    for minute, sensor, celsius in outputs["by_number"]:
        print(f"  minute {minute:2}  {sensor:7} {celsius:5.1f}")
    print("\nmean of 10 minutes, every 5")
    for sensor, (start, end), celsius in outputs["by_time"]:
        print(f"  from {start:2} to {end:2}  {sensor:7} {celsius:5.1f}")


if __name__ == "__main__":
    main()
