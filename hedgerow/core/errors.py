"""The exceptions users see: one root, each child also the built-in that fits."""

from __future__ import annotations


class HedgerowError(Exception):
    """Root of every error raised on purpose.

    >>> issubclass(ConfigError, HedgerowError) and issubclass(ConfigError, ValueError)
    True
    """


class ConfigError(HedgerowError, ValueError):
    """A configuration that cannot be built; raised when it is made, not when it is used."""


class InputError(HedgerowError, ValueError):
    """An argument with a value or shape the call cannot take."""


class DtypeError(InputError, TypeError):
    """An argument of the wrong type or element type."""


class NotFiniteError(InputError):
    """A NaN or infinity where the table's policy is to reject them. Nothing was changed."""


class NameTakenError(HedgerowError, ValueError):
    """A second object under one shared name in this process."""


class ServingTableError(HedgerowError, RuntimeError):
    """A training operation on a serving table."""


class OutOfMemoryError(HedgerowError, MemoryError):
    """A table could not grow. The table is as it was before the call, and stays usable."""


class TableFullError(HedgerowError, MemoryError):
    """Ids found no room in a table of fixed size that was asked to tell."""


class StateError(HedgerowError, RuntimeError):
    """A call that is fine in itself, but not now: something is open, or was closed."""


class CacheTooSmallError(HedgerowError, RuntimeError):
    """More rows are needed at once than a cache has places. Nothing was changed."""


class ExchangeError(HedgerowError, RuntimeError):
    """An exchange between ranks that did not succeed: a peer died, came late, or did otherwise."""


class CheckpointError(HedgerowError, ValueError):
    """A checkpoint that is damaged, incomplete, or does not fit the tables. Nothing was changed."""


class CheckpointMissingError(CheckpointError, FileNotFoundError):
    """No complete checkpoint where one was asked for."""


class CheckpointExistsError(HedgerowError, FileExistsError):
    """A complete checkpoint where a new one should go."""


class SaveError(HedgerowError, OSError):
    """A save that could not be written. The checkpoint that was there before is untouched."""


class SaveCancelledError(HedgerowError, RuntimeError):
    """A save that was cancelled. The checkpoint that was there before is untouched."""


class NotSupportedError(HedgerowError, NotImplementedError):
    """A setting of Monolith that has no definition to build from."""


class MissingExtraError(HedgerowError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


class UnknownNameError(HedgerowError, KeyError):
    """A name that is not among the known ones."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class FileMissingError(HedgerowError, FileNotFoundError):
    """No file where files were expected."""


class ConfigMissingError(ConfigError, FileMissingError):
    """No configuration file where one was named."""


class JobFailedError(HedgerowError, RuntimeError):
    """A job that began and could not go on; the message is that of its cause."""


class FileDamagedError(HedgerowError, ValueError):
    """A file that is cut off, changed, or lacks others of its set. The message names it."""


class LaunchError(HedgerowError, RuntimeError):
    """Processes of a job that do not come together, or that exchange wrong values."""


class VariableMissingError(UnknownNameError, TypeError):
    """A variable of the environment that must be set is not; a TypeError, as in Monolith."""


class RowsLeftOutWarning(UserWarning):
    """Something that torch does to a model's parameters is not done to its rows."""
