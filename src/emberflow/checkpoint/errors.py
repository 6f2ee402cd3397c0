"""The errors of stored cuts and front logs: one class for each remedy."""

from __future__ import annotations

from emberflow.errors import EmberflowError


class CheckpointError(EmberflowError):
    """The base class of the errors of stored cuts and front logs."""


class DamagedCutError(CheckpointError):
    """A file of a cut is missing or corrupt. Another cut may be whole."""


class DamagedLogError(CheckpointError):
    """A front log is damaged where it had been durable: times that the front assigned are lost."""


class DamagedFileError(CheckpointError):
    """A file beside the cuts is corrupt: a batch of a structured front, or a bundle of such a sink."""


class FencedError(CheckpointError):
    """A newer incarnation has taken over the location: the process that gets this must stop."""


class TakenError(CheckpointError):
    """An object of this name exists, and another process has created it."""


class UnfitCutError(CheckpointError):
    """The cut is of another flow, or of another version of it."""


class DamagedCutWarning(UserWarning):
    """A cut is not whole, so an earlier one is used. The message names the file and the fault."""


class UntrustedFileError(CheckpointError):
    """Another user may have written a file that would be unpickled."""


class UnreachableError(OSError):
    """Storage that is elsewhere cannot be reached now. The same call may work in a while."""
