"""Types of the compiled module. Parameters whose names end in `_at` are addresses."""

from collections.abc import Sequence

def isa() -> str: ...
def isas() -> list[str]: ...
def set_isa(name: str) -> None: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...
def memory_used() -> int: ...
def lookup_several(
    tables: Sequence[Table],
    splits: Sequence[int],
    missing: Sequence[str],
    step: int,
    ids_at: int,
    rows_at: int,
    found_at: int,
    /,
) -> None: ...
def move_in_several(
    tables: Sequence[Table],
    starts: Sequence[int],
    ends: Sequence[int],
    ids_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
    /,
) -> None: ...
def read_several(
    tables: Sequence[Table],
    splits: Sequence[int],
    ids_at: int,
    found_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
    /,
) -> list[int]: ...
def memory_limit() -> int: ...
def set_memory_limit(limit_bytes: int) -> None: ...
def scratch_bytes() -> int: ...
def reset_scratch_bytes() -> None: ...
def rule_names() -> list[str]: ...
def number_fids(
    features: Sequence[int],
    shards: int,
    unique: bool,
    words_at: int,
    offsets_at: int,
    counts_at: int,
    /,
) -> int: ...
def place_fids(
    features: Sequence[int],
    tables: Sequence[int],
    widths: Sequence[int],
    shards: int,
    rows_at: int,
    values_at: int,
    words_at: int,
    fids_at: int,
    /,
) -> None: ...

class LayoutPlan:
    def __init__(self, features: int, numbers: Sequence[int]) -> None: ...
    def features(self) -> int: ...
    def outputs(self) -> int: ...

class LayoutBatch:
    def __init__(
        self,
        lists: int,
        requests: Sequence[int],
        lengths: Sequence[int],
        nfl_at: int,
        offsets_at: int,
        wide: bool,
        ids_at: int,
    ) -> None: ...
    def check(self, plan: LayoutPlan, /) -> tuple[int, int, int, int, int]: ...
    def forward(
        self,
        plan: LayoutPlan,
        is_double: bool,
        lists: Sequence[int],
        outputs: Sequence[int],
        /,
    ) -> None: ...
    def backward(
        self,
        plan: LayoutPlan,
        is_double: bool,
        grads: Sequence[int],
        scale: float,
        lists: Sequence[int],
        /,
    ) -> None: ...

def philox(counter: Sequence[int], key: Sequence[int]) -> Sequence[int]: ...
def first_values(
    kind: str,
    a: float,
    b: float,
    seed: int,
    ids_at: int,
    n: int,
    first_column: int,
    dim: int,
    out_at: int,
    /,
) -> None: ...
def half_neighbours(x: float, /) -> tuple[float, float]: ...
def round_to_half(
    seed: int,
    ids_at: int,
    n: int,
    step: int,
    number: int,
    first_column: int,
    dim: int,
    rows_at: int,
    /,
) -> None: ...
def crc32c(data_at: int, n: int, seed: int, /) -> int: ...
def hash_strings(data_at: int, offsets_at: int, n: int, seed: int, out_at: int, /) -> None: ...
def plain_request(
    message: bytes, /
) -> tuple[str, int | None, str, dict[str, tuple[int, tuple[int, ...], int, int]]] | None: ...
def lookup_between(
    tables: Sequence[Table],
    message: bytes,
    start: int,
    counts: Sequence[int],
    head: bytes,
    tail: bytes,
    /,
) -> bytes: ...
def rows_after(
    tables: Sequence[Table],
    ids_at: Sequence[int],
    counts: Sequence[int],
    step: int,
    before_ids: Sequence[bytes],
    before_rows: Sequence[bytes],
    /,
) -> bytes | None: ...
def assign_in(
    tables: Sequence[Table],
    message: bytes,
    places: Sequence[tuple[int, int, int]],
    times: Sequence[int],
    rejects: Sequence[bool],
    /,
) -> bool: ...
def first_not_finite(values_at: int, n: int, /) -> int: ...
def gather(rows_at: int, numbers_at: int, n: int, dim: int, out_at: int, /) -> None: ...
def route(
    keys_at: int,
    n: int,
    code: int,
    owners: int,
    skipped: int,
    block: int,
    bounds: Sequence[int],
    shards_at: int,
    local_at: int,
    /,
) -> None: ...
def bucketize(
    keys_at: int,
    row_splits_at: int,
    rows: int,
    feature_rows_at: int,
    codes_at: int,
    numbers: Sequence[Sequence[int]],
    bounds: Sequence[Sequence[int]],
    shards: int,
    weights_at: int,
    local_keys: bool,
    out_lengths_at: int,
    out_keys_at: int,
    out_weights_at: int,
    positions_at: int,
    places_at: int,
    /,
) -> None: ...
def plan_split(
    indices_at: int, n: int, splits: int, blocks: int, starts_at: int, sizes_at: int, /
) -> int: ...
def split_rows(
    indices_at: int,
    n: int,
    splits: int,
    blocks: int,
    starts_at: int,
    rows_at: int,
    row_bytes: int,
    parts_at: Sequence[int],
    /,
) -> None: ...
def join_rows(
    indices_at: int,
    n: int,
    splits: int,
    blocks: int,
    starts_at: int,
    parts_at: Sequence[int],
    row_bytes: int,
    rows_at: int,
    /,
) -> None: ...
def split_ragged(
    indices_at: int,
    n: int,
    splits: int,
    blocks: int,
    starts_at: int,
    values_at: int,
    row_splits_at: int,
    rows: int,
    value_parts_at: Sequence[int],
    position_parts_at: Sequence[int],
    part_splits_at: int,
    /,
) -> None: ...
def unique_with_offsets(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    distinct_at: int,
    distinct_splits_at: int,
    offsets_at: int,
    inner_splits_at: int,
    /,
) -> int: ...
def check_part(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    offsets_at: int,
    n: int,
    inner_splits_at: int,
    known: int,
    floats: int,
    /,
) -> tuple[int, int]: ...
def mark_keys(keys_at: int, n: int, seen_at: int, /) -> bool: ...
def fill_windows(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    offsets_at: int,
    n: int,
    inner_splits_at: int,
    known: int,
    values_at: int,
    value_bytes: int,
    buffer_at: int,
    in_order: bool,
    /,
) -> None: ...
def sum_windows(
    keys_at: int,
    row_splits_at: int,
    dims: Sequence[int],
    offsets_at: int,
    n: int,
    inner_splits_at: int,
    known: int,
    grad_at: int,
    wide: bool,
    out_at: int,
    /,
) -> None: ...
def add_rows(
    rows_at: Sequence[int],
    lengths: Sequence[int],
    dim: int,
    value_bytes: int,
    numbers_at: int,
    n: int,
    many: bool,
    grads_at: int,
    /,
) -> None: ...
def add_windows(
    offsets_at: Sequence[int],
    lengths: Sequence[int],
    dims: Sequence[int],
    offset_bytes: int,
    value_bytes: int,
    grads_at: Sequence[int],
    scale: float,
    sums_at: int,
    size: int,
    /,
) -> int: ...
def copy_rows(
    rows_at: Sequence[int],
    lengths: Sequence[int],
    row_bytes: int,
    numbers_at: int,
    n: int,
    many: bool,
    out_at: int,
    /,
) -> None: ...
def copy_windows(
    offsets_at: Sequence[int],
    lengths: Sequence[int],
    dims: Sequence[int],
    offset_bytes: int,
    value_bytes: int,
    values_at: int,
    size: int,
    rows_at: Sequence[int],
    /,
) -> int: ...
def find_rows(
    ids_at: Sequence[int],
    lengths: Sequence[int],
    queries_at: int,
    n: int,
    many: bool,
    out_at: int,
    /,
) -> int: ...
def fused_reorder(
    ids_at: Sequence[int],
    lengths: Sequence[int],
    dims: Sequence[int],
    shard_count: int,
    rank0_empty: bool,
    out_at: int,
    shard_sizes_at: int,
    slot_sizes_at: int,
    offsets_at: int,
    /,
) -> tuple[int, int]: ...
def reorder(
    keys_at: int,
    kind: int,
    key_stride: int,
    rows_at: int,
    row_bytes: int,
    n: int,
    shards_at: int,
    shard_count: int,
    out_at: int,
    sizes_at: int,
    /,
) -> int: ...

class Codec:
    def __init__(
        self,
        kind: str,
        range: float = 1.0,
        amplitude: float = 1.0,
        step_size: int = 1,
        init_scale: float = 1.0,
        max_scale: float = 1.0,
    ) -> None: ...
    def bytes_per_value(self) -> int: ...
    def encode(self, values_at: int, n: int, out_at: int, /) -> None: ...
    def decode(self, stored_at: int, n: int, out_at: int, /) -> None: ...
    def view_forward(self, step: int, values_at: int, n: int, out_at: int, /) -> None: ...
    def view_backward(
        self, step: int, values_at: int, grad_at: int, n: int, out_at: int, /
    ) -> None: ...

class Segment:
    def __init__(
        self,
        dim: int,
        init: str,
        init_a: float,
        init_b: float,
        rule: str,
        settings: Sequence[float],
        initial_state: Sequence[float],
        codec: Codec,
        round_to_half: bool,
        /,
    ) -> None: ...

class SlidingFilter:
    def __init__(
        self, capacity: int, parts: int, seed: int, max_count: int, key: int = 0
    ) -> None: ...
    def add_many(
        self, table: int, ids_at: int, counts_at: int, n: int, before_at: int, /
    ) -> None: ...
    def count_many(self, table: int, ids_at: int, n: int, out_at: int, /) -> None: ...
    def memory(self) -> int: ...
    def dump(
        self, room: int, out_at: int, /
    ) -> tuple[int, int, int, int, list[tuple[int, int, int]]]: ...
    def restore(
        self,
        key: int,
        head: int,
        head_increment: int,
        failures: int,
        arrays: Sequence[tuple[int, int, int]],
        from_at: int,
        bytes: int,
        /,
    ) -> None: ...

class Admission:
    def ask(self, ids_at: int, counts_at: int, n: int, step: int, admitted_at: int, /) -> None: ...

class CountAdmission(Admission):
    def __init__(
        self,
        filter: SlidingFilter,
        table: int,
        threshold: float,
        slots: Sequence[tuple[int, float]],
    ) -> None: ...
    def ask(self, ids_at: int, counts_at: int, n: int, step: int, admitted_at: int, /) -> None: ...

class ChanceAdmission(Admission):
    def __init__(
        self, form: str, seed: int, parameter: float, slots: Sequence[tuple[int, float]]
    ) -> None: ...
    def ask(self, ids_at: int, counts_at: int, n: int, step: int, admitted_at: int, /) -> None: ...

def admission_probability(form: str, parameter: float, occurrences: int, /) -> float: ...

class RowFile:
    def __init__(self, fd: int, folder: str, resident_bytes: int) -> None: ...
    def file_bytes(self) -> int: ...
    def resident_bytes(self) -> int: ...
    def measured_bytes(self) -> int: ...

class Table:
    def __init__(
        self,
        segments: Sequence[Segment],
        serving: bool,
        skip_zero: bool,
        seed: int,
        initial_capacity: int,
        marks: str = "none",
        admission: Admission | None = None,
        rows_in: RowFile | None = None,
        slot_key: int = 0,
    ) -> None: ...
    def slot_key(self) -> int: ...
    def place_by(self, slot_key: int, /) -> bool: ...
    def dim(self) -> int: ...
    def state_floats(self) -> int: ...
    def row_bytes(self) -> int: ...
    def needs_step(self) -> bool: ...
    def lookup(
        self,
        ids: int,
        n: int,
        missing: str,
        step: int,
        out: int,
        reused: bool,
        rows: int = 0,
    ) -> None: ...
    def contains(self, ids_at: int, n: int, out_at: int, /) -> None: ...
    def entries(
        self,
        ids_at: int,
        n: int,
        found_at: int,
        rows_at: int,
        states_at: int,
        times_at: int,
        /,
    ) -> None: ...
    def searched(self) -> int: ...
    def changes(self) -> int: ...
    def size(self) -> int: ...
    def newest_time(self) -> int: ...
    def counted(self) -> tuple[int, int, int, int]: ...
    def load(self) -> tuple[float, int]: ...
    def memory(self) -> tuple[int, int, int, int]: ...
    def scan(
        self,
        cursor: int,
        room: int,
        ids_at: int,
        rows_at: int,
        states_at: int,
        times_at: int,
        /,
    ) -> tuple[int, int, bool, int]: ...
    def assign(self, ids_at: int, n: int, rows_at: int, time: int, /) -> tuple[int, int, int]: ...
    def assign_add(
        self, ids_at: int, n: int, rows_at: int, time: int, /
    ) -> tuple[int, int, int]: ...
    def apply_gradients(
        self,
        ids_at: int,
        n: int,
        grads_at: int,
        rates: Sequence[float],
        step: int,
        time: int,
        per_occurrence: bool,
        counts_at: int,
        rows_at: int,
        changes: int,
        /,
    ) -> tuple[int, int, int]: ...
    def restore(
        self, ids_at: int, n: int, rows_at: int, states_at: int, times_at: int, /
    ) -> tuple[int, int, int]: ...
    def reinitialize(self, ids_at: int, n: int, time: int, status_at: int, /) -> int: ...
    def erase(self, ids_at: int, n: int, erased_at: int, /) -> int: ...
    def move_in(
        self, ids_at: int, n: int, rows_at: int, states_at: int, times_at: int, /
    ) -> int: ...
    def move_out(self, ids_at: int, n: int, gone_at: int, /) -> int: ...
    def evict_older(
        self, reference: int, ages_at: int, cursor: int, room: int, ids_at: int, times_at: int, /
    ) -> tuple[int, int, bool, int]: ...
    def find_cut(self, order: str, budget: int, top: int = 0) -> tuple[int, int, int]: ...
    def looked_at(self) -> int: ...
    def evict_ranked(
        self,
        order: str,
        excess: int,
        score: int,
        key: int,
        cursor: int,
        room: int,
        ids_at: int,
        times_at: int,
        top: int = 0,
    ) -> tuple[int, int, bool, int]: ...
    def clear(self) -> bool: ...
    def exchange(self, other: Table, /) -> bool: ...
    def open_touched(self, capacity: int, all_changes: bool, forget: bool, /) -> int: ...
    def close_touched(self, consumer: int, /) -> None: ...
    def take_touched(
        self, consumer: int, shard: int, room: int, ids_at: int, /
    ) -> tuple[int, int, bool, int, bool, int]: ...
    def touch(self, consumer: int, ids_at: int, n: int, /) -> None: ...
    def touch_all(self, consumer: int, /) -> None: ...
    def touched_use(self, consumer: int, /) -> tuple[int, int]: ...
    def open_snapshot(self, aside_bytes: int, pause: bool, /) -> tuple[int, int, int]: ...
    def resume_writers(self) -> None: ...
    def read_snapshot(
        self,
        ticket: int,
        room: int,
        ids_at: int,
        rows_at: int,
        states_at: int,
        times_at: int,
        /,
    ) -> tuple[int, bool, int]: ...
    def snapshot_use(self) -> tuple[int, float]: ...
    def close_snapshot(self, ticket: int, /) -> None: ...

_Cells = tuple[
    int, int, int, Sequence[int], int, int
]  # ids, number of ids, offsets, cells, samples, weights
# Per feature: an address (0 for none), and the strides of bags, of the first n ids and of columns.
_Grads = Sequence[int]

class BagRows:
    def count(self, feature: int, /) -> int: ...
    def ids(self, feature: int, out_at: int, /) -> None: ...
    def rows(self, feature: int, out_at: int, /) -> int: ...

class Bags:
    def __init__(self, features: Sequence[tuple[Table, int, str, int, bool]]) -> None: ...
    def lookup(
        self,
        cells: _Cells,
        training: bool,
        step: int,
        outs_at: Sequence[int],
        reused: bool,
        keeps: bool,
        /,
    ) -> BagRows | None: ...
    def not_finite(
        self, found: BagRows, grads: _Grads, rejects: Sequence[bool], /
    ) -> tuple[int, int, int]: ...
    def spread(self, found: BagRows, feature: int, grad: _Grads, out_at: int, /) -> None: ...

def learn_bags(
    learned: Sequence[tuple[Bags, BagRows, _Grads]],
    step: int,
    rates: Sequence[Sequence[float]],
    times: Sequence[int],
    clip: float,
    /,
) -> tuple[int, int, int]: ...
