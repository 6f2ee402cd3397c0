"""Durable storage: cuts of all state, and the times that fronts have assigned.

This room knows files, not machines. `cuts.store.CheckpointStore` stores cuts, `logs.front_log` the
logs of the fronts; `docs/checkpoints.md` describes the format. This module imports no pyarrow.
"""

from emberflow.checkpoint.cuts.manifest import (
    Manifest,
    PartInfo,
    check_fits,
    compaction_due,
)
from emberflow.checkpoint.cuts.rows import BUCKET, SCHEDULED, STATE, Row, removed
from emberflow.checkpoint.errors import (
    CheckpointError,
    DamagedCutError,
    DamagedCutWarning,
    DamagedFileError,
    DamagedLogError,
    FencedError,
    UnfitCutError,
)

__all__ = [
    "BUCKET",
    "SCHEDULED",
    "STATE",
    "CheckpointError",
    "DamagedCutError",
    "DamagedCutWarning",
    "DamagedFileError",
    "DamagedLogError",
    "FencedError",
    "Manifest",
    "PartInfo",
    "Row",
    "UnfitCutError",
    "check_fits",
    "compaction_due",
    "removed",
]
