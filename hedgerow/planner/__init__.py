"""Which tables live in HBM, in host memory or in both, chosen exactly and explained.

The door `hr.planner`. Reading a plan needs no scipy; planning uses it where it is installed.
"""

from __future__ import annotations

from .compare import PlanMismatchError as PlanMismatchError
from .compare import keep_plan as keep_plan
from .plan import Plan as Plan
from .problem.key_stats import KeyStats as KeyStats
from .problem.options import PlanError as PlanError
from .problem.table_spec import Feature as Feature
from .problem.table_spec import TableSpec as TableSpec
from .problem.topology import Links as Links
from .problem.topology import Reserve as Reserve
from .problem.topology import Topology as Topology
from .solver.placement import Placement as Placement
from .solver.placement import place as place
from .solver.placement_problem import PlacementOption as PlacementOption
from .solver.placement_problem import PlacementTable as PlacementTable
from .times.calibration import Calibration as Calibration
from .verify import Observed as Observed

# Last: the function takes the name of the module that holds Plan.
from .make_plan import plan as plan  # isort: skip

__all__ = [
    "Calibration",
    "Feature",
    "KeyStats",
    "Links",
    "Observed",
    "Placement",
    "PlacementOption",
    "PlacementTable",
    "Plan",
    "PlanError",
    "PlanMismatchError",
    "Reserve",
    "TableSpec",
    "Topology",
    "keep_plan",
    "place",
    "plan",
]
