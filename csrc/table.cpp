// Writing verbs of the table: plan, reserve, commit.
#include "table.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "apply_op.h"
#include "assign_ops.h"
#include "each_shard.h"
#include "pool.h"
#include "probe.h"

namespace hedgerow {
namespace {

constexpr u64 kWriteRows = 1024;  // rows changed under one hold of a shard's lock
constexpr u64 kFewShards = 8;     // a call on so few comes shard by shard
constexpr u64 kShardIds = 512;    // where it has so many ids at least
constexpr u64 kTileBytes = u64(512) << 10;
constexpr u64 kLeastTile = 512, kMostTile = 16384;  // ids

i64 least_of(const i64* times, u64 n) { return n == 0 ? 0 : *std::min_element(times, times + n); }

// However a call ends, the memory of an unusually large one is let go.
struct Trim {
  Plan& plan;
  ~Trim() { plan.trim(); }
};

}  // namespace

Table::Table(const std::vector<SegmentSpec>& segments, bool serving, bool skip_zero, u64 seed,
             u64 initial_capacity, Marks marks, std::shared_ptr<Admission> admission,
             std::shared_ptr<RowFile> rows_in, u64 slot_key)
    : layout_(segments, serving),
      skip_zero_(skip_zero),
      seed_(seed),
      marks_(marks),
      admission_(std::move(admission)),
      arena_(layout_.stride, std::move(rows_in)),
      slot_key_(slot_key),
      snapshot_(u64(layout_.row_bytes)) {
  const CallScope scope;
  const SlotHash hash(slot_key);
  try {
    for (int i = 0; i < kShards; ++i) {
      shards_.push_back(std::make_unique<Shard>(double(i) / kShards, hash));
      views_[i] = shards_[i]->index.view();
      if (initial_capacity > kShards) make_room(i, initial_capacity / kShards);
    }
  } catch (...) {
    shards_.clear();  // within the scope, as in the destructor
    throw;
  }
}

Table::~Table() {
  const CallScope scope;  // memory is returned under a lock that a fork must not split
  shards_.clear();
  arena_.clear();
}

void Table::start_state(float* row) const {
  for (const Segment& segment : layout_.segments)
    std::copy(segment.initial_state.begin(), segment.initial_state.end(), row + segment.state_from);
}

void Table::start_values(u64 key, float* values) const {
  for (const Segment& segment : layout_.segments)
    first_values(segment.init, seed_, key, segment.first_column, segment.dim,
                 values + segment.first_column);
}

void Table::encode_row(const float* values, u8* row) const {
  for (const Segment& segment : layout_.segments)
    encode(segment.codec, values + segment.first_column, segment.dim, row + segment.encoded_from);
}

void Table::saw_time(i64 time) {
  i64 seen = newest_time_.load();
  while (time > seen && !newest_time_.compare_exchange_weak(seen, time)) {
  }
}

// Takes the rows of a shard's groups from a lookup. False: keys came or went since then.
bool Table::trust(Plan& plan, int number, const KnownRows& known) const {
  Shard& shard = *shards_[number];
  const std::shared_lock hold(shard.lock);  // whoever changes this shard tells under its lock
  if (changes() != known.changes) return false;
  plan.version[number] = shard.version;
  if (plan.has_rows()) return true;
  for (Group& group : plan.groups(number)) {
    group.row = known.rows[plan.occurrences(group)[0]];
    plan.absent[number] += group.row == kNoRow;
  }
  return true;
}

// Finds the rows of a shard's groups, under shared locks. Ids that come shard by shard lie closer
// together in its index than in the arrays of dense ids, which are those of all shards.
void Table::locate(Plan& plan, int number, const KnownRows* known) const {
  const std::span<Group> groups = plan.groups(number);
  plan.absent[number] = plan.promised[number] = 0;
  plan.stale[number] = false;
  if (groups.empty()) return;
  if (known != nullptr && trust(plan, number, *known)) return;
  searched_.fetch_add(groups.size(), std::memory_order_relaxed);
  Shard& shard = *shards_[number];
  const SlotHash hash(slot_key());
  i64 keys[kWriteRows];
  u32 rows[kWriteRows];
  for (u64 from = 0; from < groups.size(); from += kWriteRows) {
    const std::span block = groups.subspan(from, std::min(kWriteRows, groups.size() - from));
    for (u64 i = 0; i < block.size(); ++i) keys[i] = i64(block[i].key);
    const std::shared_lock hold(shard.lock);
    if (from == 0) plan.version[number] = shard.version;
    const bool by_shard = plan.ids() >= kShardIds && groups.size() * kFewShards >= plan.ids();
    const bool near = !by_shard && near_.serves(keys, block.size());
    find_rows<kProbeGroup>(hash, keys, block.size(), near, rows);
    for (u64 i = 0; i < block.size(); ++i) {
      block[i].row = rows[i];
      plan.absent[number] += rows[i] == kNoRow;
    }
  }
}

// What a snapshot and the consumers of touched keys must know before a batch's rows are written.
template <class Op>
void Table::note(int number, const Batch& batch) {
  for (u64 i = 0; i < batch.groups.size(); ++i) {
    if (batch.verdict[i] != Verdict::write) continue;
    const Group& group = batch.groups[i];
    if (batch.row[i] != nullptr && snapshot_.watches(number))
      snapshot_.keep(number, group.key, stamp_of(group.row), group.row, batch.row[i]);
    if constexpr (!Moves<Op>) {
      for (const auto& [_, touched] : touched_)
        if (Op::kLearns || touched->all_changes()) touched->mark(number, group.key);
    }
  }
}

// Carries out the verdicts on a batch: rows are born or removed, and only those to be written stay.
template <class Op>
void Table::settle(Plan& plan, int number, Batch& batch, const Op& op, Applied& applied) {
  const auto comes_or_goes = [&](u64 i) {
    return batch.row[i] == nullptr ? batch.verdict[i] == Verdict::write
                                   : batch.verdict[i] == Verdict::erase;
  };
  for (u64 i = 0; i < batch.groups.size(); ++i) {
    if (!comes_or_goes(i)) continue;
    changes_.fetch_add(1);
    break;
  }
  for (u64 i = 0; i < batch.groups.size(); ++i) {
    Group& group = batch.groups[i];
    u8*& row = batch.row[i];
    if (batch.verdict[i] == Verdict::write) {
      batch.born[i] = row == nullptr;
      if (row != nullptr) continue;
      insert(plan, number, group);
      row = arena_.row(group.row);
      op.born(group.key, row);
      ++applied.inserted;
    } else {
      if (batch.verdict[i] == Verdict::erase && row != nullptr) {
        remove(number, group.key, group.row, !Moves<Op>);
        ++applied.erased;
      }
      row = nullptr;
    }
  }
}

template <class Op>
void Table::commit_batch(Plan& plan, int number, std::span<Group> groups, const Op& op,
                         typename Op::Worker& worker, Applied& applied) {
  Batch batch{.groups = groups, .row = {}, .verdict = {}, .born = {}};
  for (u64 i = 0; i < groups.size(); ++i)
    batch.row[i] = groups[i].row == kNoRow ? nullptr : arena_.row(groups[i].row);
  op.prepare(worker, plan, batch, applied);
  if (is_watched(number)) [[unlikely]]
    note<Op>(number, batch);
  try {
    settle(plan, number, batch, op, applied);
  } catch (...) {  // no memory for a key that another call erased: rows born before it are finished
    for (u64 i = 0; i < groups.size(); ++i)
      if (!batch.born[i]) batch.row[i] = nullptr;
    op.change(worker, plan, batch, applied);
    throw;
  }
  op.change(worker, plan, batch, applied);
}

// What the next batch will touch, fetched while this one is worked on.
template <class Op>
void Table::fetch_batch(const Plan& plan, std::span<const Group> groups, const Op& op) const {
  for (const Group& group : groups.first(std::min(kBatch, groups.size()))) {
    op.fetch(plan.occurrences(group));
    if (group.row == kNoRow) continue;
    fetch_row(group.row);
  }
}

// `next`: what will be committed after `groups`, to be fetched in time.
template <class Op>
void Table::commit(Plan& plan, int number, std::span<Group> groups, std::span<const Group> next,
                   const Op& op, typename Op::Worker& worker, Applied& applied) {
  Shard& shard = *shards_[number];
  for (u64 from = 0; from < groups.size(); from += kWriteRows) {
    const u64 end = std::min(groups.size(), from + kWriteRows);
    const TrimAfter trim(arena_);
    const WriteLock hold(shard);
    if constexpr (Op::kInserts) shard.oldest.saw(op.earliest());
    plan.stale[number] = plan.stale[number] || shard.version != plan.version[number];
    if (plan.stale[number])
      for (Group& group : groups.subspan(from, end - from))
        group.row = shard.index.find(group.key, shard.index.position(group.key));
    for (u64 start = from; start < end; start += kBatch) {
      const u64 stop = std::min(end, start + kBatch);
      fetch_batch(plan, stop < groups.size() ? groups.subspan(stop) : next, op);
      commit_batch(plan, number, groups.subspan(start, stop - start), op, worker, applied);
    }
    plan.version[number] = shard.version;
  }
}

// Tile by tile, each by one thread: values of a tile that were read in order lie in its cache when
// they are needed in the order of the shards. Threads start at different shards to keep out of each
// other's way.
template <class Op>
Applied Table::commit_all(Plan& plan, const Op& op) {
  Applied total;
  std::mutex totalling;
  parallel_for(i64(plan.tiles()), [&](i64 tile) {
    Applied applied;
    typename Op::Worker worker(op);
    const auto shard_at = [&](int i) { return int((u64(tile) * 13 + u64(i)) % kShards); };
    plan.fetch(shard_at(0), u64(tile));
    plan.fetch(shard_at(1), u64(tile));
    std::span<Group> groups = plan.groups(shard_at(0), u64(tile));
    fetch_batch(plan, groups, op);
    for (int i = 0; i < kShards; ++i) {
      if (i + 2 < kShards) plan.fetch(shard_at(i + 2), u64(tile));
      const std::span<Group> next =
          i + 1 < kShards ? plan.groups(shard_at(i + 1), u64(tile)) : std::span<Group>();
      commit(plan, shard_at(i), groups, next, op, worker, applied);
      groups = next;
    }
    const std::lock_guard hold(totalling);
    total += applied;
  });
  return total;
}

// Ids whose values fill a quarter of a core's cache, or fewer: every thread should have some tiles.
u64 Table::tile_ids(u64 n) const {
  const u64 cached =
      std::clamp(kTileBytes / (sizeof(float) * u64(layout_.dim)), kLeastTile, kMostTile);
  return std::max(kLeastTile, std::min(cached, n / (4 * u64(thread_count()))));
}

template <class Op>
Applied Table::write(const i64* ids, u64 n, const Op& op, i64 newest, const Asking* asking) {
  for (;;) {
    if (snapshot_.is_open()) before_write();  // without a lock: it may wait
    const CallScope scope;
    arena_.check();
    const TrimAfter trim(arena_);
    const std::shared_lock uncleared(clearing_);
    if (snapshot_.pauses_me()) continue;  // it was opened in between
    const Applied applied = write_now(ids, n, op, asking);
    saw_time(newest);
    return applied;
  }
}

// What the caller of an update knows of its rows; null where it knows nothing.
template <class Op>
const KnownRows* known_rows(const Op& op) {
  if constexpr (requires { op.update.known; }) return op.update.known;
  return nullptr;
}

template <class Op>
Applied Table::write_now(const i64* ids, u64 n, const Op& op, const Asking* asking) {
  const RunAlone alone(n < kAloneIds);
  Plan& plan = Plan::of_this_thread();
  const Trim trim{plan};
  plan.fresh = {};
  if (n > Plan::kMaxIds)
    throw std::length_error("a call of " + std::to_string(n) + " ids; at most " +
                            std::to_string(Plan::kMaxIds) + ", split it");
  const KnownRows* const known = known_rows(op);
  const SlotHash hash(slot_key());
  // As long as no key came or went since the lookup, equal rows are equal ids.
  if (known != nullptr && changes() == known->changes &&
      plan.group_known(hash, ids, n, tile_ids(n), known->rows)) {
    for (int shard = 0; shard < kShards; ++shard) locate(plan, shard, known);
  } else {
    plan.split(hash, ids, n, tile_ids(n));
    for_each_shard(n, [&](int shard) {
      plan.group(shard);
      locate(plan, shard, known);
    });
  }
  bool changing = false;
  Applied total;
  i64 refused = 0;
  try {
    if (admission_ != nullptr && asking != nullptr && plan.any_absent())
      refused = admit(plan, *asking);
    if (Op::kInserts && plan.any_absent()) reserve(plan, n);
    changing = true;
    total = commit_all(plan, op);
  } catch (OutOfMemory& error) {
    release(plan);
    error.rows_changed = changing;
    throw;
  } catch (const std::bad_alloc&) {  // of the library: a few bytes of scratch
    release(plan);
    OutOfMemory error(0, memory_used(), memory_limit());
    error.rows_changed = changing;
    throw error;
  } catch (...) {
    release(plan);
    throw;
  }
  release(plan);
  total.refused += refused;
  if constexpr (!Moves<Op>) count(total);
  return total;
}

void Table::count(const Applied& applied) {
  inserted_.fetch_add(applied.inserted, std::memory_order_relaxed);
  refused_.fetch_add(applied.refused, std::memory_order_relaxed);
  dropped_.fetch_add(applied.dropped, std::memory_order_relaxed);
  erased_.fetch_add(applied.erased, std::memory_order_relaxed);
}

Applied Table::counted() const {
  return {inserted_.load(), refused_.load(), dropped_.load(), erased_.load()};
}

Applied Table::assign(const i64* ids, u64 n, const float* rows, i64 time) {
  const Asking asking{time_of(time)};
  return write(ids, n, AssignOp{*this, {*this, rows}, time}, time, &asking);
}

Applied Table::assign_add(const i64* ids, u64 n, const float* rows, i64 time) {
  const Asking asking{time_of(time)};
  return write(ids, n, AssignAddOp{*this, {*this, rows}, time}, time, &asking);
}

Applied Table::apply_gradients(const i64* ids, u64 n, const Update& update) {
  const Asking asking{update.step, update.per_occurrence, update.counts};
  return write(ids, n, ApplyOp{*this, update}, update.time, &asking);
}

Applied Table::restore(const i64* ids, u64 n, const float* rows, const float* states,
                       const i64* times) {
  const i64 newest = n == 0 ? 0 : *std::max_element(times, times + n);
  return write(ids, n, RestoreOp{*this, {*this, rows}, states, times, least_of(times, n)}, newest);
}

i64 Table::reinitialize(const i64* ids, u64 n, i64 time, i8* status) {
  return write(ids, n, ReinitializeOp{*this, time, status}, 0).inserted;
}

i64 Table::erase(const i64* ids, u64 n, u8* erased) {
  return write(ids, n, EraseOp{*this, erased}, 0).erased;
}

i64 Table::move_in(const i64* ids, u64 n, const float* rows, const float* states,
                   const i64* times) {
  return write(ids, n, MoveInOp{{*this, {*this, rows}, states, times, least_of(times, n)}}, 0)
      .inserted;
}

i64 Table::move_out(const i64* ids, u64 n, u8* gone) {
  return write(ids, n, MoveOutOp{{*this, gone}}, 0).erased;
}

}  // namespace hedgerow
