"""What can go wrong with stored cuts and front logs, named after what to do about it."""

from __future__ import annotations

from emberflow.errors import EmberflowError


class CheckpointError(EmberflowError):
    """The base of the errors of stored cuts and front logs."""


class DamagedCutError(CheckpointError):
    """A file of a cut is missing, or is not what was written. Another cut may be whole."""


class DamagedLogError(CheckpointError):
    """A front log is damaged where it had been durable: times that were given are lost."""


class FencedError(CheckpointError):
    """A newer incarnation has taken over the location: whoever gets this must end."""


class UnfitCutError(CheckpointError):
    """The cut is of another flow, or of another version of it."""


class DamagedCutWarning(UserWarning):
    """A cut is not whole and an earlier one is used. The message names the file and the fault."""
