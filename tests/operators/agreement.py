"""A flow of the fronts ``one`` and ``other`` on all runners without Spark: they give the same."""

from __future__ import annotations

from random import Random

import emberflow as ef
from tests.batch.local import batch


def check_workers_and_batch(flow: ef.Flow, random: Random, seed: int) -> None:
    """Workers that crash or not, and batch, give what the reference gives for random elements."""
    fronts = {
        name: [ef.At(at, random.randrange(9)) for at in sorted(random.sample(range(60), 25))]
        for name in ("one", "other")
    }
    expected = ef.run(flow, **fronts)
    found = ef.simulate(flow, seed=seed, workers=3, crashes=seed % 2, **fronts)
    assert found.outputs == expected
    assert repr(batch(flow, fronts, partitions=3, seed=seed)) == repr(expected)
