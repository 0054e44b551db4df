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

void Table::start_row(u64 key, u8* row) const {
  if (layout_.serving) {  // a serving row that is added to starts from zeros, encoded
    static thread_local std::vector<float> zeros;
    zeros.assign(u64(layout_.dim), 0.0f);
    return encode_row(zeros.data(), row);
  }
  float* values = reinterpret_cast<float*>(row);
  for (const Segment& segment : layout_.segments)
    first_values(segment.init, seed_, key, segment.first_column, segment.dim,
                 values + segment.first_column);
  start_state(values);
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
  shard.index.reserve(shard.index.size() + shard.reserved + rows);
  shard.free_rows.reserve(arena_, shard.reserved + rows, shard.index.size());
  shard.reserved += rows;
  plan.promised[shard_number] = rows;
}

void Table::release(Plan& plan) {
  for (int number = 0; number < kShards; ++number) {
    if (plan.promised[number] == 0) continue;
    const std::lock_guard hold(shards_[number]->lock);
    shards_[number]->reserved -= plan.promised[number];
    plan.promised[number] = 0;
  }
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
  for (u64 from = 0; from < groups.size(); from += kWriteRows) {
    const std::span block = groups.subspan(from, std::min(kWriteRows, groups.size() - from));
    const std::lock_guard hold(shard.lock);
    if (shard.version != plan.version[shard_number])  // another call was here since `locate`
      for (Group& group : block)
        group.row = shard.index.find(group.key, position_of(slot_hash(group.key)));
    for (u64 i = 0; i < std::min(kAhead, block.size()); ++i) fetch(block[i]);
    for (u64 i = 0; i < block.size(); ++i) {
      if (i + kAhead < block.size()) fetch(block[i + kAhead]);
      Group& group = block[i];
      const Occurrences at = plan.occurrences(group);
      const u64 position = position_of(slot_hash(group.key));
      switch (op.prepare(worker, group, at, applied)) {
        case Verdict::drop:
          continue;
        case Verdict::erase:
          if (group.row == kNoRow) continue;
          shard.index.erase(group.key, position);
          shard.free_rows.give(arena_, group.row);
          ++shard.version;
          ++applied.erased;
          continue;
        case Verdict::write:
          break;
      }
      const bool born_now = group.row == kNoRow;
      if (born_now) {
        // Promised room can only be gone if the key was erased by another call since `locate`.
        shard.index.reserve(shard.index.size() + 1);
        shard.free_rows.reserve(arena_, 1, shard.index.size());
        group.row = shard.free_rows.take(arena_);
        shard.index.insert(group.key, position, group.row);
        ++shard.version;
        ++applied.inserted;
        if (plan.promised[shard_number] != 0) {
          --plan.promised[shard_number];
          --shard.reserved;
        }
        op.born(group.key, arena_.row(group.row));
      }
      op.change(worker, group, at, born_now, arena_.row(group.row), arena_.time(group.row),
                applied);
    }
    plan.version[shard_number] = shard.version;
  }
  return applied;
}

template <class Op>
Applied Table::write(const i64* ids, u64 n, const Op& op) {
  static thread_local Plan plan_of_thread;
  Plan& plan = plan_of_thread;
  const CallScope scope;
  plan.build(ids, n);
  std::fill_n(plan.promised, kShards, 0);
  for_each_shard(n, [&](int shard) { locate(plan, shard); });
  Applied total;
  std::mutex totalling;
  try {
    if (Op::kInserts) for_each_shard(n, [&](int shard) { reserve(plan, shard); });
    for_each_shard(n, [&](int shard) {
      const Applied part = commit(plan, shard, op);
      const std::lock_guard hold(totalling);
      total.inserted += part.inserted;
      total.refused += part.refused;
      total.dropped += part.dropped;
      total.erased += part.erased;
    });
  } catch (...) {
    release(plan);
    throw;
  }
  release(plan);
  plan.trim();
  return total;
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
