// Reads rows of a table: by id, or all of them in slices. Nothing is inserted.
#pragma once

#include "cursor.h"
#include "row_store.h"
#include "row_values.h"

namespace hedgerow {

// What a lookup gives for an id without a row.
enum class Missing { zeros, first_value };

// Whether a lookup's output memory was written before. Large outputs that were are stored past the
// caches; fresh ones come on huge pages where they may.
enum class OutputMemory { fresh, reused };

struct LookupRequest {
  const i64* ids;
  u64 n;
  Missing missing;
  i64 step;
};

// Where a lookup writes. Rows hold as long as the store's `changes` stay as they were before.
struct LookupOutput {
  float* values;  // [n, dim]
  OutputMemory memory;
  u8* found = nullptr;  // [n] if given: whether the id has a row
  u32* rows = nullptr;  // [n] if given: which row, or kNoRow
};

class RowReader {
 public:
  RowReader(const RowStore& store, const RowValues& values) : store_(store), values_(values) {}

  void lookup(const LookupRequest& request, const LookupOutput& output) const;
  void contains(const i64* ids, u64 n, u8* out) const;
  // Stored rows [n, dim], states [n, state_floats] and times of the ids found; others are zeros.
  void entries(const i64* ids, u64 n, u8* found, float* rows, float* states, i64* times) const;
  // Rows from `cursor` on (0 to begin), up to `room`, as `entries` gives them. A row that lives
  // from the first step to the last is given exactly once, whatever else happens to the table
  // meanwhile.
  ScanStep scan(u64 cursor, u64 room, i64* ids, float* rows, float* states, i64* times) const;

 private:
  struct LookupVisitor;
  struct ContainsVisitor;
  struct EntriesVisitor;

  template <class Visitor>
  void visit(const i64* ids, u64 n, u64 task_ids, const Visitor& visitor) const;
  void each_piece(const i64* ids, u64 n, u64 task_ids, const auto& read) const;
  template <u64 kGroup, class Visitor>
  void visit_piece(const SlotHash& hash, const i64* ids, u64 from, u64 count, const u32* known,
                   const Visitor& visitor) const;
  void find_piece(const SlotHash& hash, const i64* ids, u64 count, u32* rows) const;
  SearchIn search_in(const SlotHash& hash, const i64* keys, u64 n) const;
  bool rows_are_far_apart() const;
  void copy_entry(u32 row, float* rows, float* states, i64* time) const;

  const RowStore& store_;
  const RowValues& values_;
};

}  // namespace hedgerow
