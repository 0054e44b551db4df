// Writing verbs of the table: plan, reserve, commit.
#include "table.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "pool.h"
#include "write_ops.h"

namespace hedgerow {
namespace {

constexpr u64 kWriteRows = 1024;  // rows changed under one hold of a shard's lock
constexpr u64 kAhead = 8;         // groups whose rows and gradients are fetched ahead
constexpr u64 kShareIds = 4096;   // smaller calls are not worth waking other threads for

void for_each_shard(u64 ids, auto&& body) {
  if (ids < kShareIds) {
    for (int shard = 0; shard < kShards; ++shard) body(shard);
  } else {
    parallel_for(kShards, [&](i64 shard) { body(int(shard)); });
  }
}

}  // namespace

Table::Table(const std::vector<SegmentSpec>& segments, bool serving, bool skip_zero, u64 seed,
             u64 initial_capacity)
    : layout_(segments, serving), skip_zero_(skip_zero), seed_(seed), arena_(layout_.stride) {
  for (int i = 0; i < kShards; ++i) shards_.push_back(std::make_unique<Shard>(double(i) / kShards));
  if (initial_capacity > kShards)
    for (auto& shard : shards_) shard->index.reserve(initial_capacity / kShards);
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

// Finds the rows of a shard's groups, under shared locks.
void Table::locate(Plan& plan, int shard_number) const {
  const std::span<Group> groups = plan.groups(shard_number);
  Shard& shard = *shards_[shard_number];
  const auto position = [](const Group& group) { return position_of(slot_hash(group.key)); };
  plan.absent[shard_number] = 0;
  for (u64 from = 0; from < groups.size(); from += kWriteRows) {
    const std::span block = groups.subspan(from, std::min(kWriteRows, groups.size() - from));
    const std::shared_lock hold(shard.lock);
    if (from == 0) plan.version[shard_number] = shard.version;
    for (u64 i = 0; i < std::min(kAhead, block.size()); ++i)
      shard.index.prefetch(position(block[i]));
    for (u64 i = 0; i < block.size(); ++i) {
      if (i + kAhead < block.size()) shard.index.prefetch(position(block[i + kAhead]));
      block[i].row = shard.index.find(block[i].key, position(block[i]));
      if (block[i].row == kNoRow) ++plan.absent[shard_number];
    }
  }
}

// Makes room for every key that was not found, so that nothing can fail once rows change.
void Table::reserve(Plan& plan, int shard_number) {
  const u64 rows = plan.absent[shard_number];
  if (rows == 0) return;
  Shard& shard = *shards_[shard_number];
  const std::lock_guard hold(shard.lock);
  shard.free_rows.reserve(arena_, shard.reserved + rows, shard.index.size());
  shard.reserved += rows;
  plan.promised[shard_number] = rows;
  shard.index.reserve(shard.index.size() + shard.reserved);
}

// Ends the promises of a call; after a failure, rows taken for them go back to the arena.
void Table::release(Plan& plan, bool failed) {
  for (int number = 0; number < kShards; ++number) {
    if (plan.promised[number] == 0) continue;
    Shard& shard = *shards_[number];
    const std::lock_guard hold(shard.lock);
    shard.reserved -= plan.promised[number];
    plan.promised[number] = 0;
    if (failed) shard.free_rows.trim(arena_, shard.reserved);
  }
}

// A row for a key that has none. Room was promised, unless the key was erased by another call since
// `locate`: then it may have to be found now.
u32 Table::give_row(Plan& plan, int shard_number, u64 key) {
  Shard& shard = *shards_[shard_number];
  const u64 needed = shard.reserved + (plan.promised[shard_number] == 0 ? 1 : 0);
  shard.index.reserve(shard.index.size() + needed);
  shard.free_rows.reserve(arena_, needed, shard.index.size());
  const u32 row = shard.free_rows.take(arena_);
  shard.index.insert(key, position_of(slot_hash(key)), row);
  ++shard.version;
  if (plan.promised[shard_number] != 0) {
    --plan.promised[shard_number];
    --shard.reserved;
  }
  return row;
}

void Table::take_row(int shard_number, const Group& group) {
  Shard& shard = *shards_[shard_number];
  shard.index.erase(group.key, position_of(slot_hash(group.key)));
  shard.free_rows.give(arena_, group.row);
  ++shard.version;
}

template <class Op>
void Table::commit_one(Plan& plan, int shard_number, Group& group, const Op& op,
                       typename Op::Worker& worker, Applied& applied) {
  const Occurrences at = plan.occurrences(group);
  const bool there = group.row != kNoRow;
  switch (op.prepare(worker, group, at, there ? arena_.row(group.row) : nullptr, applied)) {
    case Verdict::drop:
      return;
    case Verdict::erase:
      if (!there) return;
      take_row(shard_number, group);
      ++applied.erased;
      return;
    case Verdict::write:
      break;
  }
  if (!there) {
    group.row = give_row(plan, shard_number, group.key);
    ++applied.inserted;
    op.born(group.key, arena_.row(group.row));
  }
  op.change(worker, group, at, !there, arena_.row(group.row), arena_.time(group.row), applied);
}

template <class Op>
Applied Table::commit(Plan& plan, int shard_number, const Op& op) {
  const std::span<Group> groups = plan.groups(shard_number);
  Applied applied;
  if (groups.empty()) return applied;
  Shard& shard = *shards_[shard_number];
  typename Op::Worker worker(op);
  const auto fetch = [&](const Group& group) {
    op.fetch(plan.occurrences(group));
    if (group.row == kNoRow) return;
    const u8* row = arena_.row(group.row);
    for (int offset = 0; offset < layout_.row_bytes; offset += 64)
      __builtin_prefetch(row + offset, 1);
    __builtin_prefetch(arena_.time(group.row), 1);
  };
  u64 version = plan.version[shard_number];
  bool stale = false;  // once another call was here, no row found by `locate` may be trusted
  for (u64 from = 0; from < groups.size(); from += kWriteRows) {
    const std::span block = groups.subspan(from, std::min(kWriteRows, groups.size() - from));
    const std::lock_guard hold(shard.lock);
    stale = stale || shard.version != version;
    if (stale)
      for (Group& group : block)
        group.row = shard.index.find(group.key, position_of(slot_hash(group.key)));
    for (u64 i = 0; i < std::min(kAhead, block.size()); ++i) fetch(block[i]);
    for (u64 i = 0; i < block.size(); ++i) {
      if (i + kAhead < block.size()) fetch(block[i + kAhead]);
      commit_one(plan, shard_number, block[i], op, worker, applied);
    }
    version = shard.version;
  }
  return applied;
}

template <class Op>
Applied Table::write(const i64* ids, u64 n, const Op& op) {
  const CallScope scope;
  Plan& plan = Plan::of_this_thread();
  plan.build(ids, n);
  std::fill_n(plan.promised, kShards, 0);
  for_each_shard(n, [&](int shard) { locate(plan, shard); });
  bool changing = false;
  std::mutex totalling;
  Applied total;
  try {
    if (Op::kInserts) for_each_shard(n, [&](int shard) { reserve(plan, shard); });
    changing = true;
    for_each_shard(n, [&](int shard) {
      const Applied part = commit(plan, shard, op);
      const std::lock_guard hold(totalling);
      total += part;
    });
  } catch (OutOfMemory& error) {
    release(plan, true);
    error.rows_changed = changing;
    throw;
  } catch (const std::bad_alloc&) {  // of the library: a few bytes of scratch
    release(plan, true);
    OutOfMemory error(0, memory_used(), memory_limit());
    error.rows_changed = changing;
    throw error;
  } catch (...) {
    release(plan, true);
    throw;
  }
  release(plan, false);
  plan.trim();
  count(total);
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
  const Applied applied = write(ids, n, AssignOp{*this, {*this, rows}, time});
  saw_time(time);
  return applied;
}

Applied Table::assign_add(const i64* ids, u64 n, const float* rows, i64 time) {
  const Applied applied = write(ids, n, AssignAddOp{*this, {*this, rows}, time});
  saw_time(time);
  return applied;
}

Applied Table::apply_gradients(const i64* ids, u64 n, const Update& update) {
  const Applied applied = write(ids, n, ApplyOp{*this, update});
  saw_time(update.time);
  return applied;
}

Applied Table::restore(const i64* ids, u64 n, const float* rows, const float* states,
                       const i64* times) {
  const Applied applied = write(ids, n, RestoreOp{*this, {*this, rows}, states, times});
  if (n != 0) saw_time(*std::max_element(times, times + n));
  return applied;
}

i64 Table::reinitialize(const i64* ids, u64 n, i64 time, i8* status) {
  return write(ids, n, ReinitializeOp{*this, time, status}).inserted;
}

i64 Table::erase(const i64* ids, u64 n, u8* erased) {
  return write(ids, n, EraseOp{*this, erased}).erased;
}

void Table::clear() {
  const CallScope scope;
  for (auto& shard : shards_) shard->lock.lock();
  for (auto& shard : shards_) {
    shard->index.clear();
    shard->free_rows.clear();
    ++shard->version;
  }
  arena_.clear();
  for (auto& shard : shards_) shard->lock.unlock();
}

}  // namespace hedgerow
