"""The planner: chooses exactly which tables live in HBM, in host memory or in both.

Users import it as `hr.planner`. Loading a plan does not need scipy. Planning uses scipy if it is
installed.
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

# Last: this function replaces the submodule `plan` as the attribute of that name.
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
