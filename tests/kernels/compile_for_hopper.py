"""Compiles every kernel for a Hopper GPU as the launchers would start it, and tells what came out.

Needs no GPU; must run without TRITON_INTERPRET. Prints one JSON object a kernel. Nearly all of the
time is Triton's own (compilers of its intermediate languages, before ptxas), for every form of a
kernel anew: each once, in the form that has most in it; `all` compiles the other forms as well.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

CPU, NUMBERS = torch.device("cpu"), torch.zeros(12, dtype=torch.float64)
_VOLATILE = re.compile(r"ld\.volatile\.global(?:\.v(\d))?\.b64")


class Hopper:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(kernel: Any, grid: tuple[int]) -> Any:
    def launch(*args: Any, **options: Any) -> None:
        made = kernel.run(*args, grid=grid, warmup=True, **options)
        ptx = made.asm["ptx"]
        told = {
            "kernel": kernel.__name__,
            "places": (  # rows, by swapping keys
                options.get("START", 0) == 0
                and options.get("PASS", 1) == 1
                and options.get("INSERT", True)
            ),
            "exact": options.get("RULE") != "dense_adam",  # its powers are libdevice's, in float64
            "cubin_bytes": len(made.asm["cubin"]),
            "fused": len(re.findall(r"\bfma\.", ptx)),
            "flushed": ptx.count(".ftz"),
            "keys_a_thread": sum(int(width or 1) for width in _VOLATILE.findall(ptx)),
            "swaps": re.findall(r"atom\S*\.cas\.(b\d+)", ptx),
        }
        print(json.dumps(told), flush=True)  # noqa: T201

    return launch


def use_hopper() -> None:
    """From now on a launch compiles, and tells what came out."""
    triton.runtime.driver.set_active(Hopper())  # pyright: ignore[reportArgumentType]
    JITFunction.__getitem__ = compile_only


def every_kernel() -> None:
    """Each once, and each rule: as that of a narrow segment, whose rows have been placed."""
    from hedgerow.kernels import (
        apply,
        assign,
        find,
        first_values,
        incoming_rows,
        leave,
        lookup,
        placement,
        runs,
        step,
        sum_gradients,
    )
    from hedgerow.kernels.layout import Arrays, FirstValues, Grouped, RowSegment, draws_of, group
    from hedgerow.kernels.rules import RULES

    from .cases import coming_of

    dim, ids = 64, torch.arange(100)
    table, rows = Arrays.make(8, dim, CPU), torch.ones(100, dim)
    wide = Arrays.make(8, dim, CPU, 3 * dim)
    uniform, usable = FirstValues("uniform", -0.1, 0.1, 7), torch.ones(100, dtype=torch.bool)
    counts, grouped = torch.zeros(3, dtype=torch.int64), group(ids)
    placement.place(ids, table.buckets)
    slots = find.find(table, ids, torch.tensor([9]))
    find.find_or_insert(table, ids)
    first_values.first_values(ids, 7, FirstValues("truncated_normal", -0.1, 0.1, 7))
    lookup.gather(table, slots)
    assign.erase(table, grouped)
    sum_gradients.sum_gradients(grouped, torch.ones(100, 4))
    none = FirstValues("constant", 0.0, 0.0, 7)
    parts = [RowSegment(0, 4, dim, uniform, "sgd", NUMBERS)]
    for at, rule in enumerate(sorted(RULES - {"sgd"}), start=1):
        parts.append(RowSegment(4 * at, 4, dim, none, rule, NUMBERS))
    rates = [0.1] * len(parts)
    apply.apply(wide, Grouped(ids, None), rows, counts, parts, rates, 5, slots)
    apply.apply(wide, grouped, rows, counts, parts[:1], rates[:1], 5, slots)
    several = Arrays.make_several([3, 4], dim, CPU, 3 * dim)
    splits = torch.tensor([0, 50, 100])
    part = RowSegment(0, dim, dim, uniform, "adam", NUMBERS, draws_of([uniform, uniform], CPU))
    lookup.lookup(several, ids, rows, [part], None, splits)
    step.step(several, ids, rows, counts, [part], [0.1], 5, slots, None, splits)
    seats = runs.seat(several, ids, slots, None, splits, insert=False)
    uses = incoming_rows.ArrivalCounts(seats, ids)
    coming = coming_of(splits, ids, usable, rows, torch.ones(100, 3 * dim), ids)
    incoming_rows.put_rows(several, coming, uses, 5)
    incoming_rows.absent(several, ids, splits, seats, 5, 100)
    listing = incoming_rows.absent_slots(ids, slots, splits, 100)
    incoming_rows.find_and_list(several, ids, splits, 100)
    lookup.read(several, slots, rows, splits)
    incoming_rows.put_rows(
        several, coming, uses, 5, incoming_rows.WaitingBatch(listing, slots, rows)
    )
    marks = runs.Marks(seats, usable, 5)
    runs.seat(several, ids, slots, None, splits, insert=False, marks=marks)
    leave.mark(seats, seats, usable, 5)
    old = seats[:2].contiguous()
    how = {"room": 100, "buckets": 4, "limit": 9, "turn": 1}
    leave.oldest(several, seats, ids, sample=1 << 14)
    chosen = leave.choose_old(several, seats, usable, old, splits, **how)
    leave.single_out(several, chosen, ids, splits, old, seats, usable)
    leave.clean(chosen, usable)
    leave.take_out(several, chosen, seats, usable, ids)
    assign.assign(wide, grouped, rows, usable, torch.ones(dim), counts, 5)
    features(several, part, ids, ["mean", ("first", 3), "max"])
    rare_verbs(wide, grouped, rows, usable, counts, dataclasses.replace(part, draws=None))
    all_slots(table, ids, rows)


def features(several: Any, part: Any, ids: torch.Tensor, poolings: list[Any]) -> None:
    """All features of two tables: forward, and gradients where autograd left them."""
    from hedgerow.kernels import output_gradients, pool_features, step

    dim, tables = several.dim, [0, 1, 1][: len(poolings)]
    found = pool_features.Features.of(several, [part], tables, list(range(len(tables))), poolings)
    weights = torch.ones(len(ids))
    offsets, shifts = torch.arange(0, 5 * len(tables) + 1), torch.zeros(3, dtype=torch.int64)
    pooled = pool_features.pool_features(several, found, ids, offsets, shifts, 5, weights, [part])
    grads = [torch.ones(5, fan, dim) if fan > 1 else torch.ones(5, dim) for fan in found.fans]
    known = output_gradients.OutputGradients.of(
        grads, pooled.at, len(ids), dim, found.largest, torch.tensor
    )
    pool_features.spread(known, 0, 100)
    counts, splits = torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 50, 100])
    step.step(several, ids, known, counts, [part], [0.1], 5, pooled.slots, None, splits)


def known_rows(several: Any, ids: torch.Tensor) -> None:
    """Bags of two tables whose slots are known, and gradients of some of their ids."""
    from hedgerow.kernels import output_gradients, pool_features

    poolings: list[Any] = ["mean", ("first", 3), "max"]
    found = pool_features.Features.of(several, [], [0, 1, 1], [0, 1, 2], poolings)
    offsets, shifts = torch.arange(0, 16), torch.zeros(3, dtype=torch.int64)
    for others in (None, torch.ones(len(ids), several.dim)):
        known = pool_features.Known(torch.zeros_like(ids), others)
        pooled = pool_features.pool_features(
            several, found, ids, offsets, shifts, 5, torch.ones(len(ids)), known=known
        )
    grads = [torch.ones(5, fan, several.dim) for fan in found.fans]
    given = output_gradients.OutputGradients.of(
        grads, pooled.at, len(ids), several.dim, found.largest, torch.tensor
    )
    pool_features.spread_at(given, ids)


def rare_verbs(
    wide: Any, grouped: Any, rows: torch.Tensor, usable: torch.Tensor, counts: Any, part: Any
) -> None:
    from hedgerow.kernels import admission, apply, assign
    from hedgerow.kernels.layout import Cells

    ids, starts = grouped.ids, torch.ones(64)
    assign.assign_add(wide, grouped, rows, usable, rows, starts, counts, 5, None, ids)
    each = dataclasses.replace(part, rule="row_adagrad")
    apply.apply_each(wide, grouped, usable, rows, ids, usable, [each], [0.1], 5)
    admission.draws(ids, ids, 7, 3)
    filter_ = Cells.make(1000, 5, 255, CPU)
    admission.counts_of(filter_, ids, usable, 3)
    admission.add_counts(filter_, ids, usable, ids, 3)


def all_slots(table: Any, ids: torch.Tensor, rows: torch.Tensor) -> None:
    from hedgerow.kernels import evict, find, slots
    from hedgerow.kernels.layout import Arrays

    find.exchange(table, ids, rows)
    held = Arrays.make(8, 64, CPU, scored=True, pinned=True)
    evict.insert_and_evict(held, ids, ids, rows, call=1, mode="use")
    for mode in ("assign", "use"):
        evict.touch(held, ids, ids, mode)
    evict.pin(held, ids)
    slots.select(held)
    slots.erase_if(held)
    slots.rehash(held, held)


def other_forms() -> None:
    """The kernels for other rows, rules and numbers of tables: what differs is compiled anew."""
    from hedgerow.kernels import (
        apply,
        evict,
        find,
        first_values,
        incoming_rows,
        lookup,
        runs,
        step,
        sum_gradients,
    )
    from hedgerow.kernels.layout import Arrays, FirstValues, Grouped, RowSegment, draws_of, group
    from hedgerow.kernels.rules import RULES

    from .cases import coming_of

    dim, ids = 64, torch.arange(100)
    table, rows = Arrays.make(8, dim, CPU), torch.ones(100, dim)
    wide = Arrays.make(8, dim, CPU, 3 * dim)
    uniform, usable = FirstValues("uniform", -0.1, 0.1, 7), torch.ones(100, dtype=torch.bool)
    counts, grouped = torch.zeros(3, dtype=torch.int64), group(ids)
    slots = torch.full_like(ids, -1)
    for kind in ("constant", "uniform"):
        first_values.first_values(ids, 7, FirstValues(kind, -0.1, 0.1, 7))
    lookup.lookup(table, ids, rows)
    sum_gradients.sum_gradients(grouped, rows)
    for rule in sorted(RULES):
        part = RowSegment(0, dim, dim, uniform, rule, NUMBERS)
        apply.apply(wide, grouped, rows, counts, [part], [0.1], 5, slots)
    halves = [RowSegment(k, dim // 2, dim, uniform, "sgd", NUMBERS) for k in (0, dim // 2)]
    apply.apply(wide, Grouped(ids, None), rows, counts, halves, [0.1, 0.1], 5)
    step.step(wide, ids, rows, counts, halves, [0.1, 0.1], 5, slots)
    several, splits = Arrays.make_several([3, 4], dim, CPU, 3 * dim), torch.tensor([0, 50, 100])
    find.find_or_insert(several, ids, splits)
    for alone in (False, True):
        if alone:  # a group of one table
            several, splits = Arrays.make_several([7], dim, CPU, 3 * dim), torch.tensor([0, 100])
        seats = runs.seat(several, ids, slots, None, splits, insert=False)
        incoming_rows.absent(several, ids, splits, seats, 5)
        listing = incoming_rows.absent_slots(ids, slots, splits)
        incoming_rows.find_and_list(several, ids, splits)
        lookup.read(several, slots, rows, splits)
        uses = incoming_rows.ArrivalCounts(seats, ids)
        coming = coming_of(splits, ids, usable, rows, torch.ones(100, 3 * dim), ids)
        for out in (None, rows):
            incoming_rows.put_rows(
                several, coming, uses, 5, incoming_rows.WaitingBatch(listing, slots, out)
            )
    marked = RowSegment(0, dim, dim, uniform, "adam", NUMBERS, draws_of([uniform], CPU))
    step.step(several, ids, rows, counts, [marked], [0.1], 5, slots, None, splits)
    for rule in ("ftrl", "torch_adam"):  # states of a value, of both a value and a row
        each = RowSegment(0, dim, dim, uniform, rule, NUMBERS)
        apply.apply_each(wide, grouped, usable, rows, ids, usable, [each], [0.1], 5)
    several = Arrays.make_several([3, 4], dim, CPU, 3 * dim)
    shared = RowSegment(0, dim, dim, uniform, "adam", NUMBERS, draws_of([uniform, uniform], CPU))
    borders = torch.tensor([0, 50, 100])
    lookup.lookup_features(several, several.spans, ids, rows, [shared], borders, 50)
    features(several, shared, ids, ["sum", "sum"])
    known_rows(several, ids)
    held = Arrays.make(8, dim, CPU, pinned=True)
    evict.insert_and_evict(held, ids, ids, rows, call=1)
    evict.insert_and_evict(table, ids, ids, call=1)


if __name__ == "__main__":
    use_hopper()
    from .compile_ops import ops_kernels  # the one door for both: a process costs seconds

    every_kernel()
    ops_kernels([torch.float32])
    if sys.argv[1:] == ["all"]:
        other_forms()
        ops_kernels([torch.float32, torch.float64, torch.bfloat16, torch.float16])
