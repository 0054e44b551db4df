"""How modules with rows take part in torch.compile, requires_grad_, and torch's optimizers."""

from __future__ import annotations

import inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..core.errors import RowsLeftOutWarning, StateError
from ..core.ids import outside_graphs

_STEPS = 8  # watched steps of an optimizer: mistakes show in the first steps of a loop
_TASKS = 16  # backwards for which trained rows are remembered
_MODULES = f"{__package__}.embedding_modules"
_ASKING = {"named_modules", "_named_members", "named_parameters", "parameters"}  # of nn.Module


@dataclass(frozen=True, slots=True)
class TrainedRows:
    """The tables whose rows took part in a backward, with what warnings depend on."""

    undecayed: tuple[str, ...]  # tables of optimizers without a weight decay of their own
    tables: tuple[str, ...]
    takes_changes: bool  # the update waits in hr.hold_updates, or clips by hr.ClipRow


@dataclass(slots=True, eq=False)
class _WatchedOptimizer:
    """An optimizer in its first steps: gradients of its parameters, and rows trained with them."""

    rows_of: Callable[[int], list[TrainedRows]]
    steps_left: int = _STEPS
    hooks: list[Any] = field(default_factory=list)
    fresh: list[Tensor] = field(default_factory=list)
    ending: set[int] = field(default_factory=set)
    rows: list[TrainedRows] = field(default_factory=list)
    grads: dict[Tensor, tuple[Tensor, int]] = field(default_factory=dict)

    def attach(self, optimizer: Optimizer) -> None:
        """Starts to watch the gradients of the optimizer's parameters."""
        every = [p for group in optimizer.param_groups for p in group["params"]]
        leaves = [p for p in every if p.requires_grad and p.is_leaf]
        self.hooks = [p.register_post_accumulate_grad_hook(self._accumulated) for p in leaves]

    def detach(self) -> None:
        """Stops watching the optimizer."""
        for hook in self.hooks:
            hook.remove()
        self.hooks, self.fresh, self.rows = [], [], []
        self.grads.clear()

    def _accumulated(self, parameter: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        self.fresh.append(parameter)
        if task not in self.ending:
            self.ending.add(task)
            _at_end(lambda: _at_end(partial(self._ended, task)))  # after DDP's callback at the end

    def _ended(self, task: int) -> None:
        """Records the gradients of a backward that has ended, and which rows took part in it."""
        self.ending.discard(task)
        self.rows += self.rows_of(task)
        for parameter in self.fresh:
            if parameter.grad is not None:
                self.grads[parameter] = parameter.grad, parameter.grad._version
        self.fresh = []

    def changed(self) -> bool:
        """Returns whether anything but a backward has changed a gradient since it was recorded."""
        return any(p.grad is g and g._version != version for p, (g, version) in self.grads.items())


class OptimizerWatcher:
    """Watches optimizers whose parameters get gradients in the same backward as rows.

    It warns of two things in their first steps: a `weight_decay`, and gradients that were changed
    between backward and `step()`, as `clip_grad_norm_` does. It does not detect the `unscale_` of a
    scaler, which leaves no trace in the gradients. `PenaltyWatcher` detects a penalty in the loss.
    """

    def __init__(self) -> None:
        self._watched: WeakKeyDictionary[Optimizer, _WatchedOptimizer] = WeakKeyDictionary()
        self._tasks: OrderedDict[int, list[TrainedRows]] = OrderedDict()
        self._installed = self._rows_seen = False

    def install(self) -> None:
        """Registers a hook before every optimizer's step. A second call does nothing."""
        if not self._installed:
            self._installed = True
            register_optimizer_step_pre_hook(self._before_step)

    def saw(self, rows: Callable[[], TrainedRows]) -> None:
        """Records that the running backward gave gradients to `rows`."""
        self._rows_seen = True
        for watched in self._watched.values():
            if watched.hooks:
                break
        else:
            return
        task = torch._C._current_graph_task_id()
        self._tasks.setdefault(task, []).append(rows())
        if len(self._tasks) > _TASKS:
            self._tasks.popitem(last=False)

    def _rows_of(self, task: int) -> list[TrainedRows]:
        return self._tasks.get(task, [])

    @outside_graphs
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        watched = self._watched.get(optimizer)
        if watched is None:
            if self._rows_seen:
                watched = self._watched[optimizer] = _WatchedOptimizer(self._rows_of)
                watched.attach(optimizer)
            return
        if not watched.hooks:
            return
        told = _warn_of_optimizer(optimizer, watched)
        watched.steps_left -= 1
        watched.rows = []
        watched.grads.clear()
        if told or not watched.steps_left:
            watched.detach()


def _warn_of_optimizer(optimizer: Optimizer, watched: _WatchedOptimizer) -> bool:
    """Warns of what an optimizer does to parameters but not to rows. Returns whether it did."""
    decays = [group.get("weight_decay", 0) for group in optimizer.param_groups]
    undecayed = dict.fromkeys(name for rows in watched.rows for name in rows.undecayed)
    unchanged = dict.fromkeys(
        name for rows in watched.rows if not rows.takes_changes for name in rows.tables
    )
    found = False
    if undecayed and any(isinstance(decay, float | int) and decay > 0 for decay in decays):
        found = True
        _warn(
            f"weight_decay={max(decays):g} of torch.optim.{type(optimizer).__name__} leaves out "
            f"the rows of {', '.join(undecayed)}: rows are not Parameters. Give their optimizer a "
            f"weight_decay, as hr.Adagrad(lr=0.1, weight_decay=1e-5), or ignore RowsLeftOutWarning."
        )
    if unchanged and watched.changed():
        found = True
        _warn(
            f"gradients of dense parameters were changed after backward(), as clip_grad_norm_ "
            f"does; the rows of {', '.join(unchanged)} were updated at the end of backward(), "
            f"without that change. Put both into `with hr.hold_updates(model) as "
            f"held:` and use held.clip_grad_norm_, or limit each row with clip=hr.ClipRow(norm)."
        )
    return found


def _warn(text: str) -> None:
    warnings.warn(text, RowsLeftOutWarning, stacklevel=6)  # where the user calls step()


@dataclass(slots=True, eq=False)
class PenaltyWatcher:
    """Detects that `parameters()` is read between a forward and its backward, in the first steps.

    Code outside torch and this package does so for a penalty on weights in the loss. The first
    forward is ignored, since an optimizer may be created after it.
    """

    steps_left: int = _STEPS + 1
    reads: bool = False  # whether rows were read, and their backward has not run yet

    def began(self) -> None:
        """Records that rows were read for training."""
        self.reads = 0 < self.steps_left <= _STEPS

    def ended(self) -> None:
        """Records that rows got a gradient."""
        self.reads = False
        self.steps_left = max(0, self.steps_left - 1)

    def asked(self, rows: Callable[[], TrainedRows]) -> None:
        """Warns if this call of `named_modules` comes from `parameters()` before a backward."""
        if not self.reads or not torch.is_grad_enabled():
            return
        depth, undecayed = _reader_of_parameters(), rows().undecayed
        if depth is None or not undecayed:
            return
        self.reads, self.steps_left = False, 0
        warnings.warn(
            f"parameters() was read between a forward and its backward, as for a penalty in the "
            f"loss; the rows of {', '.join(undecayed)} are not part of it: they are no Parameters. "
            f"Give their optimizer a weight_decay, as hr.Adagrad(lr=0.1, weight_decay=1e-5), or "
            f"ignore RowsLeftOutWarning.",
            RowsLeftOutWarning,
            stacklevel=depth,
        )


def _reader_of_parameters() -> int | None:
    """Returns the stack level of the caller of `parameters()`; None if torch or we call it."""
    frame, depth, names = inspect.currentframe(), 0, set[str]()
    while frame is not None and frame.f_globals.get("__name__") in (__name__, _MODULES):
        frame, depth = frame.f_back, depth + 1
    while frame is not None and frame.f_globals.get("__name__") == nn.Module.__module__:
        names.add(frame.f_code.co_name)
        frame, depth = frame.f_back, depth + 1
    asks = {"parameters", "named_parameters"} & names and names <= _ASKING
    if frame is None or not asks:
        return None
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return None if package in ("torch", __name__.partition(".")[0]) else depth


def _at_end(call: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)


OPTIMIZER_WATCHER = OptimizerWatcher()  # one per process, as torch's optimizer hooks are


def follow_requires_grad() -> None:
    """Makes `requires_grad_` of any module apply to the rows of the modules that it contains.

    It is the only method of torch that this package replaces. The method of torch visits Parameters
    only and calls no method of the modules below. Our method calls torch's first, and then visits
    the modules with rows.
    """
    plain: Any = nn.Module.requires_grad_
    if hasattr(plain, "reaches_rows"):
        return

    @wraps(plain)
    def requires_grad_(self: nn.Module, requires_grad: bool = True) -> nn.Module:
        from .embedding_modules import EmbeddingModule

        plain(self, requires_grad)
        for module in self.modules():
            if isinstance(module, EmbeddingModule):
                module.let_rows_learn(requires_grad)
        return self

    vars(requires_grad_)["reaches_rows"] = True
    nn.Module.requires_grad_ = requires_grad_  # pyright: ignore[reportAttributeAccessIssue]


P = ParamSpec("P")
R = TypeVar("R")


def between_graphs(forward: Callable[P, R]) -> Callable[P, R]:
    """Makes compiled models call a forward uncompiled, between two graphs, and makes exports raise.

    Such a forward reads tables and records what to update, which no graph can hold.
    """
    apart = outside_graphs(forward)

    @wraps(forward)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_exporting():
            raise StateError(
                "torch.export of a model whose tables can be written; export hr.freeze(model)."
            )
        return apart(*args, **kwargs)

    return call
