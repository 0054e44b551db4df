// The way of a writing call, the same for all verbs: plan, reserve, commit.
#include "row_writer.h"

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

// Takes the rows of a shard's groups from a lookup. False: keys came or went since then.
bool RowWriter::take_known_rows(Plan& plan, int number, const KnownRows& known) const {
  Shard& shard = store_.shard(number);
  const std::shared_lock hold(
      shard.lock);  // whoever changes this shard counts the change under its lock
  if (store_.changes() != known.changes) return false;
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
void RowWriter::find_groups(Plan& plan, int number, const KnownRows* known) const {
  const std::span<Group> groups = plan.groups(number);
  plan.absent[number] = plan.promised[number] = 0;
  plan.stale[number] = false;
  if (groups.empty()) return;
  if (known != nullptr && take_known_rows(plan, number, *known)) return;
  store_.count_searched(groups.size());
  Shard& shard = store_.shard(number);
  const SlotHash hash = store_.slot_hash();
  i64 keys[kWriteRows];
  u32 rows[kWriteRows];
  for (u64 from = 0; from < groups.size(); from += kWriteRows) {
    const std::span block = groups.subspan(from, std::min(kWriteRows, groups.size() - from));
    for (u64 i = 0; i < block.size(); ++i) keys[i] = i64(block[i].key);
    const std::shared_lock hold(shard.lock);
    if (from == 0) plan.version[number] = shard.version;
    const bool by_shard = plan.ids() >= kShardIds && groups.size() * kFewShards >= plan.ids();
    const bool dense = !by_shard && store_.dense_ids_serve(keys, block.size());
    store_.find<kProbeGroup>(hash, keys, block.size(),
                             dense ? SearchIn::dense_ids_first : SearchIn::index, rows);
    for (u64 i = 0; i < block.size(); ++i) {
      block[i].row = rows[i];
      plan.absent[number] += rows[i] == kNoRow;
    }
  }
}

// What a snapshot and the change feed must know before a batch's rows are written.
template <class Op>
void RowWriter::track(int number, const Batch& batch) {
  for (u64 i = 0; i < batch.groups.size(); ++i) {
    if (batch.verdict[i] != Verdict::write) continue;
    const Group& group = batch.groups[i];
    if (batch.row[i] != nullptr) snapshots_.keep(number, group.key, group.row);
    if constexpr (!Moves<Op>)
      tracker_.mark(number, group.key, Op::kLearns ? Watched::training : Watched::every_change);
  }
}

// Carries out the verdicts on a batch: rows are born or removed, and only those to be written stay.
template <class Op>
void RowWriter::carry_out(Plan& plan, int number, Batch& batch, const Op& op, Applied& applied) {
  const auto comes_or_goes = [&](u64 i) {
    return batch.row[i] == nullptr ? batch.verdict[i] == Verdict::write
                                   : batch.verdict[i] == Verdict::erase;
  };
  for (u64 i = 0; i < batch.groups.size(); ++i) {
    if (!comes_or_goes(i)) continue;
    store_.count_change();
    break;
  }
  for (u64 i = 0; i < batch.groups.size(); ++i) {
    Group& group = batch.groups[i];
    u8*& row = batch.row[i];
    if (batch.verdict[i] == Verdict::write) {
      batch.born[i] = row == nullptr;
      if (row != nullptr) continue;
      allocator_.insert(plan, number, group);
      row = store_.arena().row(group.row);
      op.born(group.key, row);
      ++applied.inserted;
    } else {
      if (batch.verdict[i] == Verdict::erase && row != nullptr) {
        allocator_.remove(number, group.key, group.row,
                          Moves<Op> ? Erasure::untracked : Erasure::tracked);
        ++applied.erased;
      }
      row = nullptr;
    }
  }
}

template <class Op>
void RowWriter::commit_batch(Plan& plan, int number, std::span<Group> groups, const Op& op,
                             typename Op::Worker& worker, Applied& applied) {
  Batch batch{.groups = groups, .row = {}, .verdict = {}, .born = {}};
  for (u64 i = 0; i < groups.size(); ++i)
    batch.row[i] = groups[i].row == kNoRow ? nullptr : store_.arena().row(groups[i].row);
  op.prepare(worker, plan, batch, applied);
  if (tracker_.has_consumers() || snapshots_.watches(number)) [[unlikely]]
    track<Op>(number, batch);
  try {
    carry_out(plan, number, batch, op, applied);
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
void RowWriter::fetch_batch(const Plan& plan, std::span<const Group> groups, const Op& op) const {
  for (const Group& group : groups.first(std::min(kBatch, groups.size()))) {
    op.fetch(plan.occurrences(group));
    if (group.row == kNoRow) continue;
    store_.fetch_row(group.row);
  }
}

// `next`: what will be committed after `groups`, to be fetched in time.
template <class Op>
void RowWriter::commit(Plan& plan, int number, std::span<Group> groups, std::span<const Group> next,
                       const Op& op, typename Op::Worker& worker, Applied& applied) {
  Shard& shard = store_.shard(number);
  for (u64 from = 0; from < groups.size(); from += kWriteRows) {
    const u64 end = std::min(groups.size(), from + kWriteRows);
    const TrimAfter trim(store_.arena());
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
Applied RowWriter::commit_all(Plan& plan, const Op& op) {
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
u64 RowWriter::tile_ids(u64 n) const {
  const u64 cached =
      std::clamp(kTileBytes / (sizeof(float) * values_.dim()), kLeastTile, kMostTile);
  return std::max(kLeastTile, std::min(cached, n / (4 * u64(thread_count()))));
}

template <class Op>
Applied RowWriter::write(const i64* ids, u64 n, const Op& op, i64 newest,
                         const AdmissionContext* admitted_by) {
  for (;;) {
    if (snapshots_.is_open()) snapshots_.before_write();  // without a lock: it may wait
    const CallScope scope;
    store_.arena().check();
    const TrimAfter trim(store_.arena());
    const std::shared_lock shared(store_.table_lock());
    if (snapshots_.pauses_this_thread()) continue;  // it was opened in between
    const Applied applied = write_now(ids, n, op, admitted_by);
    store_.saw_time(newest);
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
Applied RowWriter::write_now(const i64* ids, u64 n, const Op& op,
                             const AdmissionContext* admitted_by) {
  const RunAlone alone(n < kAloneIds);
  Plan& plan = Plan::of_this_thread();
  const Trim trim{plan};
  plan.fresh = {};
  if (n > Plan::kMaxIds)
    throw std::length_error("a call of " + std::to_string(n) + " ids; at most " +
                            std::to_string(Plan::kMaxIds) + ", split it");
  const KnownRows* const known = known_rows(op);
  const SlotHash hash = store_.slot_hash();
  // As long as no key came or went since the lookup, equal rows are equal ids.
  if (known != nullptr && store_.changes() == known->changes &&
      plan.group_known(hash, ids, n, tile_ids(n), known->rows)) {
    for (int shard = 0; shard < kShards; ++shard) find_groups(plan, shard, known);
  } else {
    plan.split(hash, ids, n, tile_ids(n));
    for_each_shard(n, [&](int shard) {
      plan.group(shard);
      find_groups(plan, shard, known);
    });
  }
  bool changing = false;
  Applied total;
  i64 refused = 0;
  try {
    if (admission_.has_rule() && admitted_by != nullptr && plan.any_absent())
      refused = admission_.refuse(plan, *admitted_by);
    if (Op::kInserts && plan.any_absent()) allocator_.reserve(plan, n);
    changing = true;
    total = commit_all(plan, op);
  } catch (OutOfMemory& error) {
    allocator_.release(plan);
    error.rows_changed = changing;
    throw;
  } catch (const std::bad_alloc&) {  // of the library: a few bytes of scratch
    allocator_.release(plan);
    OutOfMemory error(0, memory_used(), memory_limit());
    error.rows_changed = changing;
    throw error;
  } catch (...) {
    allocator_.release(plan);
    throw;
  }
  allocator_.release(plan);
  total.refused += refused;
  if constexpr (!Moves<Op>) count(total);
  return total;
}

void RowWriter::count(const Applied& applied) {
  inserted_.fetch_add(applied.inserted, std::memory_order_relaxed);
  refused_.fetch_add(applied.refused, std::memory_order_relaxed);
  dropped_.fetch_add(applied.dropped, std::memory_order_relaxed);
  erased_.fetch_add(applied.erased, std::memory_order_relaxed);
}

Applied RowWriter::counted() const {
  return {inserted_.load(), refused_.load(), dropped_.load(), erased_.load()};
}

Applied RowWriter::assign(const i64* ids, u64 n, const float* rows, i64 time) {
  const AdmissionContext context{store_.time_of(time)};
  return write(ids, n, AssignOp{{values_, store_}, {values_, rows}, time}, time, &context);
}

Applied RowWriter::assign_add(const i64* ids, u64 n, const float* rows, i64 time) {
  const AdmissionContext context{store_.time_of(time)};
  return write(ids, n, AssignAddOp{{values_, store_}, {values_, rows}, time}, time, &context);
}

Applied RowWriter::apply_gradients(const i64* ids, u64 n, const Update& update) {
  const AdmissionContext context{update.step, update.equal_ids, update.counts};
  return write(ids, n, ApplyOp{{values_, store_}, update}, update.time, &context);
}

Applied RowWriter::restore(const i64* ids, u64 n, const float* rows, const float* states,
                           const i64* times) {
  const i64 newest = n == 0 ? 0 : *std::max_element(times, times + n);
  return write(ids, n,
               RestoreOp{{values_, store_}, {values_, rows}, states, times, least_of(times, n)},
               newest);
}

i64 RowWriter::reinitialize(const i64* ids, u64 n, i64 time, i8* status) {
  return write(ids, n, ReinitializeOp{{values_, store_}, time, status}, 0).inserted;
}

i64 RowWriter::erase(const i64* ids, u64 n, u8* erased) {
  return write(ids, n, EraseOp{{values_, store_}, erased}, 0).erased;
}

i64 RowWriter::move_in(const i64* ids, u64 n, const float* rows, const float* states,
                       const i64* times) {
  return write(ids, n,
               MoveInOp{{{values_, store_}, {values_, rows}, states, times, least_of(times, n)}}, 0)
      .inserted;
}

i64 RowWriter::move_out(const i64* ids, u64 n, u8* gone) {
  return write(ids, n, MoveOutOp{{{values_, store_}, gone}}, 0).erased;
}

}  // namespace hedgerow
