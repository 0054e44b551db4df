// Bounds of numbers in messages, and copies between messages and tables.
#include "message_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "finite.h"
#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kMostBytes = u64(std::numeric_limits<i64>::max());  // of a message

u64 row_bytes_of(const Table& table) { return u64(table.layout().dim) * sizeof(float); }

void check_table(const Table* table) {
  if (table == nullptr) throw std::invalid_argument("one of the tables is None; give tables");
}

[[noreturn]] void throw_beyond(u64 count, u64 start, u64 size) {
  throw std::invalid_argument(std::to_string(count) + " numbers from byte " +
                              std::to_string(start) + " on end beyond the message of " +
                              std::to_string(size));
}

bool is_aligned(const void* address, u64 bytes) { return u64(address) % bytes == 0; }

// Whether all ids have rows, of which these were read: an id without one reads as zeros.
bool all_have_rows(const Table& table, const i64* ids, u64 n, const float* rows) {
  const u64 dim = u64(table.layout().dim);
  std::vector<i64> doubtful;
  for (u64 i = 0; i < n; ++i)
    if (rows[i * dim] == 0.0f) doubtful.push_back(ids[i]);
  std::vector<u8> found(doubtful.size());
  if (!doubtful.empty()) table.contains(doubtful.data(), doubtful.size(), found.data());
  return std::find(found.begin(), found.end(), u8(0)) == found.end();
}

// Writes bytes one after the other.
struct Output {
  u8* at;

  void put(const void* data, u64 bytes) {
    if (bytes != 0) std::memcpy(at, data, bytes);
    at += bytes;
  }
};

}  // namespace

bool lies_within(u64 size, u64 start, u64 count, u64 item_bytes) {
  return start <= size && count <= (size - start) / item_bytes;
}

MessageLookup::MessageLookup(std::vector<const Table*> tables, MessageBytes message, u64 start,
                             std::vector<u64> counts)
    : tables_(std::move(tables)), counts_(std::move(counts)) {
  if (tables_.size() != counts_.size())
    throw std::invalid_argument(std::to_string(counts_.size()) + " counts for " +
                                std::to_string(tables_.size()) + " tables; give one for each");
  for (const Table* table : tables_) check_table(table);
  for (const u64 count : counts_) {  // no sum of counts that passed can wrap
    if (start > message.size() ||
        !lies_within(message.size(), start + ids_ * sizeof(i64), count, sizeof(i64)))
      throw std::invalid_argument("the ids from byte " + std::to_string(start) +
                                  " on end beyond the message of " +
                                  std::to_string(message.size()));
    ids_ += count;
  }
  if (start > message.size()) throw_beyond(0, start, message.size());
  stored_ids_ = message.data() + start;
  for (u64 k = 0; k < tables_.size(); ++k) {
    const u64 bytes = row_bytes_of(*tables_[k]);
    if (counts_[k] > (kMostBytes - row_bytes()) / bytes)
      throw std::invalid_argument("the rows of a message's ids take more bytes than a message can");
    floats_ += counts_[k] * (bytes / sizeof(float));
  }
}

void MessageLookup::read(u8* out) const {
  // Ids and rows may stand at any byte of a message; a table wants them where numbers stand.
  const auto ids = std::make_unique_for_overwrite<i64[]>(ids_);
  const auto rows = std::make_unique_for_overwrite<float[]>(floats_);
  if (ids_ != 0) std::memcpy(ids.get(), stored_ids_, ids_ * sizeof(i64));
  const i64* next_id = ids.get();
  float* next_row = rows.get();
  for (u64 k = 0; k < tables_.size(); ++k) {
    tables_[k]->lookup(next_id, counts_[k], Missing::zeros, 0, next_row, OutputMemory::reused);
    next_id += counts_[k];
    next_row += counts_[k] * u64(tables_[k]->layout().dim);
  }
  if (floats_ != 0) std::memcpy(out, rows.get(), row_bytes());
}

RowsMessage::RowsMessage(std::vector<Part> parts) : parts_(std::move(parts)) {
  const auto add = [&](u64 count, u64 item_bytes) {
    if (!lies_within(kMostBytes, size_, count, item_bytes))
      throw std::invalid_argument(std::to_string(count) +
                                  " ids and rows are too many for a message");
    size_ += count * item_bytes;
  };
  for (const Part& part : parts_) {
    check_table(part.table);
    add(part.before_ids.size(), 1);
    add(part.before_rows.size(), 1);
    add(part.count, sizeof(i64) + row_bytes_of(*part.table));
    most_floats_ = std::max(most_floats_, part.count * u64(part.table->layout().dim));
  }
}

bool RowsMessage::write(i64 step, u8* out) const {
  const RunAlone alone(true);
  std::vector<float> aside;  // for rows that would stand where no floats can
  Output output{out};
  for (const Part& part : parts_) {
    const u64 row_bytes = part.count * row_bytes_of(*part.table);
    output.put(part.before_ids.data(), part.before_ids.size());
    output.put(part.ids, part.count * sizeof(i64));
    output.put(part.before_rows.data(), part.before_rows.size());
    const bool aligned = is_aligned(output.at, alignof(float));
    if (!aligned) aside.resize(most_floats_);
    float* const rows = aligned ? reinterpret_cast<float*>(output.at) : aside.data();
    part.table->lookup(part.ids, part.count, Missing::zeros, step, rows, OutputMemory::reused);
    if (!all_have_rows(*part.table, part.ids, part.count, rows)) return false;
    if (!aligned && row_bytes != 0) std::memcpy(output.at, rows, row_bytes);
    output.at += row_bytes;
  }
  return true;
}

bool assign_message(MessageBytes message, std::span<const AssignedPart> parts) {
  bool aligned = true;
  for (const AssignedPart& part : parts) {
    check_table(part.table);
    if (!lies_within(message.size(), part.ids_from, part.count, sizeof(i64)))
      throw_beyond(part.count, part.ids_from, message.size());
    if (!lies_within(message.size(), part.rows_from, part.count, row_bytes_of(*part.table)))
      throw_beyond(part.count, part.rows_from, message.size());
    aligned = aligned && is_aligned(message.data() + part.ids_from, alignof(i64)) &&
              is_aligned(message.data() + part.rows_from, alignof(float));
  }
  if (!aligned) return false;
  const auto ids = [&](const AssignedPart& part) {
    return reinterpret_cast<const i64*>(message.data() + part.ids_from);
  };
  const auto rows = [&](const AssignedPart& part) {
    return reinterpret_cast<const float*>(message.data() + part.rows_from);
  };
  const RunAlone alone(true);
  for (const AssignedPart& part : parts) {
    const u64 floats = part.count * u64(part.table->layout().dim);
    if (part.not_finite == NotFiniteRows::reject_message &&
        first_not_finite(rows(part), floats) >= 0)
      return false;
  }
  for (const AssignedPart& part : parts)
    part.table->assign(ids(part), part.count, rows(part), part.time);
  return true;
}

}  // namespace hedgerow
