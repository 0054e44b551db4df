"""The exceptions that users see.

Each derives from `HedgerowError` and a fitting built-in exception.
"""

from __future__ import annotations


class HedgerowError(Exception):
    """Root of all exceptions that Hedgerow raises deliberately.

    >>> issubclass(ConfigError, HedgerowError) and issubclass(ConfigError, ValueError)
    True
    """


class ConfigError(HedgerowError, ValueError):
    """A configuration is invalid. Raised when the configuration is created, not when it is used."""


class InputError(HedgerowError, ValueError):
    """An argument has a value or shape that the call does not accept."""


class DtypeError(InputError, TypeError):
    """An argument has the wrong Python type or tensor dtype."""


class NotFiniteError(InputError):
    """A value is NaN or infinite, and the table's policy rejects such values.

    Nothing was changed.
    """


class NameTakenError(HedgerowError, ValueError):
    """A shared name is already taken by another object in this process."""


class ServingTableError(HedgerowError, RuntimeError):
    """A training operation was called on a serving table."""


class OutOfMemoryError(HedgerowError, MemoryError):
    """A table could not grow. It is unchanged and stays usable."""


class TableFullError(HedgerowError, MemoryError):
    """A table of fixed size has no free slots for new ids, and its overflow policy is to raise."""


class StateError(HedgerowError, RuntimeError):
    """A call is not allowed in the current state, for example because something is closed."""


class CacheTooSmallError(HedgerowError, RuntimeError):
    """A call needs more rows at once than the cache can hold. Nothing was changed."""


class ExchangeError(HedgerowError, RuntimeError):
    """An exchange between ranks failed: a peer died, timed out, or called something different."""


class CheckpointError(HedgerowError, ValueError):
    """A checkpoint is damaged, incomplete, or does not match the tables. Nothing was changed."""


class CheckpointMissingError(CheckpointError, FileNotFoundError):
    """No complete checkpoint was found at the given path."""


class CheckpointExistsError(HedgerowError, FileExistsError):
    """A complete checkpoint already exists at the path of a new one."""


class SaveError(HedgerowError, OSError):
    """A checkpoint could not be written. The previous checkpoint is intact."""


class SaveCancelledError(HedgerowError, RuntimeError):
    """A save was cancelled. The previous checkpoint is intact."""


class NotSupportedError(HedgerowError, NotImplementedError):
    """A setting of Monolith is not supported, because its behavior is not defined anywhere."""


class MissingExtraError(HedgerowError, ImportError):
    """An optional library is not installed. The message names the extra that installs it."""


class UnknownNameError(HedgerowError, KeyError):
    """A name is not among the known names."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class FileMissingError(HedgerowError, FileNotFoundError):
    """No file was found where files were expected."""


class ConfigMissingError(ConfigError, FileMissingError):
    """The configuration file that was named does not exist."""


class JobFailedError(HedgerowError, RuntimeError):
    """A job started but could not continue. The message is that of the cause."""


class FileDamagedError(HedgerowError, ValueError):
    """A file is truncated, corrupted, or belongs to an incomplete set.

    The message names the file.
    """


class LaunchError(HedgerowError, RuntimeError):
    """The processes of a job could not connect, or exchanged wrong values."""


class VariableMissingError(UnknownNameError, TypeError):
    """A required environment variable is not set. Also a TypeError, as in Monolith."""


class RowsLeftOutWarning(UserWarning):
    """An operation that torch applied to a model's parameters was not applied to its table rows."""
