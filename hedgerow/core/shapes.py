"""Names for annotations that carry shapes: `Int64[Tensor, "n"]`. No cost at run time."""

from __future__ import annotations

from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Float32
from typing import Annotated as Float64
from typing import Annotated as Int8
from typing import Annotated as Int32
from typing import Annotated as Int64
from typing import Annotated as UInt8

__all__ = ["Bool", "Float", "Float32", "Float64", "Int8", "Int32", "Int64", "UInt8"]
