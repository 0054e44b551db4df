// Rows of tables for messages: looked up for ids that stand in a message, assigned from one, and
// written into one.
//
// Offsets and counts come with the message, so nothing is read before it is known to lie within the
// message. Numbers may stand at any byte.
#pragma once

#include <span>
#include <vector>

#include "table.h"

namespace hedgerow {

using MessageBytes = std::span<const u8>;

// Whether `count` items of `item_bytes` each lie within `size` bytes from byte `start` on.
bool lies_within(u64 size, u64 start, u64 count, u64 item_bytes);

// Looks up the ids that stand in a message from byte `start` on: the first counts[0] of them in
// tables[0], and so on. The message stays as it is until the rows were read.
class MessageLookup {
 public:
  // Throws std::invalid_argument where the ids end beyond the message.
  MessageLookup(std::vector<const Table*> tables, MessageBytes message, u64 start,
                std::vector<u64> counts);

  u64 row_bytes() const { return floats_ * sizeof(float); }
  // Writes the rows one after the other, zeros for ids without one. `out` has `row_bytes` bytes.
  void read(u8* out) const;

 private:
  std::vector<const Table*> tables_;
  std::vector<u64> counts_;
  const u8* stored_ids_;
  u64 ids_ = 0, floats_ = 0;
};

// A message of ids and their rows, table after table, each behind bytes that are given for them.
class RowsMessage {
 public:
  struct Part {
    const Table* table;
    const i64* ids;
    u64 count;
    MessageBytes before_ids;
    MessageBytes before_rows;
  };

  // Throws std::invalid_argument where a table is missing or the message would be too long.
  explicit RowsMessage(std::vector<Part> parts);

  u64 size() const { return size_; }
  // Writes the message to `out`, which has `size` bytes. False where an id has no row; then the
  // message is of no use. In one thread: the other cores belong to the trainer.
  bool write(i64 step, u8* out) const;

 private:
  std::vector<Part> parts_;
  u64 size_ = 0, most_floats_ = 0;
};

// What happens to rows of a message with values that are not finite: they are left out, or nothing
// of the message is assigned.
enum class NotFiniteRows { leave_out, reject_message };

// The ids of one table and their rows in a message, by their first bytes.
struct AssignedPart {
  Table* table;
  u64 ids_from;
  u64 count;
  u64 rows_from;
  i64 time;
  NotFiniteRows not_finite;
};

// Assigns the rows of a message. Throws std::invalid_argument where a part ends beyond the message.
// False, with nothing changed, where numbers do not stand at a multiple of their size in memory, or
// rows are rejected. In one thread: changed keys come shard by shard, so threads would wait for
// each other at the locks of one or two shards, on cores that readers want.
bool assign_message(MessageBytes message, std::span<const AssignedPart> parts);

}  // namespace hedgerow
