"""Every error class of Hedgerow. The door `hr.errors`.

All derive from `HedgerowError`. Most also derive from the built-in exception that fits, such as
`ValueError` or `TimeoutError`.
"""

from __future__ import annotations

from .core.errors import CacheTooSmallError as CacheTooSmallError
from .core.errors import CheckpointError as CheckpointError
from .core.errors import CheckpointExistsError as CheckpointExistsError
from .core.errors import CheckpointMissingError as CheckpointMissingError
from .core.errors import ConfigError as ConfigError
from .core.errors import ConfigMissingError as ConfigMissingError
from .core.errors import DtypeError as DtypeError
from .core.errors import ExchangeError as ExchangeError
from .core.errors import FileDamagedError as FileDamagedError
from .core.errors import FileMissingError as FileMissingError
from .core.errors import HedgerowError as HedgerowError
from .core.errors import InputError as InputError
from .core.errors import JobFailedError as JobFailedError
from .core.errors import LaunchError as LaunchError
from .core.errors import MissingExtraError as MissingExtraError
from .core.errors import NameTakenError as NameTakenError
from .core.errors import NotFiniteError as NotFiniteError
from .core.errors import NotSupportedError as NotSupportedError
from .core.errors import OutOfMemoryError as OutOfMemoryError
from .core.errors import RowsLeftOutWarning as RowsLeftOutWarning
from .core.errors import SaveCancelledError as SaveCancelledError
from .core.errors import SaveError as SaveError
from .core.errors import ServingTableError as ServingTableError
from .core.errors import StateError as StateError
from .core.errors import TableFullError as TableFullError
from .core.errors import UnknownNameError as UnknownNameError
from .core.errors import VariableMissingError as VariableMissingError
from .core.protobuf import WireError as WireError
from .planner.compare import PlanMismatchError as PlanMismatchError
from .planner.problem.options import PlanError as PlanError
from .ps.errors import ConsumerGoneError as ConsumerGoneError
from .ps.errors import DeadlineError as DeadlineError
from .ps.errors import FrameError as FrameError
from .ps.errors import LogError as LogError
from .ps.errors import RolledBackError as RolledBackError
from .ps.errors import ServerAwayError as ServerAwayError
from .ps.errors import ServerRefusedError as ServerRefusedError
from .serving.model import ServingError as ServingError
from .sync.link import TargetError as TargetError
from .wire.rpc import CallError as CallError

__all__ = [
    "CacheTooSmallError",
    "CallError",
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointMissingError",
    "ConfigError",
    "ConfigMissingError",
    "ConsumerGoneError",
    "DeadlineError",
    "DtypeError",
    "ExchangeError",
    "FileDamagedError",
    "FileMissingError",
    "FrameError",
    "HedgerowError",
    "InputError",
    "JobFailedError",
    "LaunchError",
    "LogError",
    "MissingExtraError",
    "NameTakenError",
    "NotFiniteError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PlanError",
    "PlanMismatchError",
    "RolledBackError",
    "RowsLeftOutWarning",
    "SaveCancelledError",
    "SaveError",
    "ServerAwayError",
    "ServerRefusedError",
    "ServingError",
    "ServingTableError",
    "StateError",
    "TableFullError",
    "TargetError",
    "UnknownNameError",
    "VariableMissingError",
    "WireError",
]
