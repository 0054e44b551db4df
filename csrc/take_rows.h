// Rows by id: finding their numbers, copying them, and adding gradients to them.
#pragma once

#include <span>

#include "id_rows.h"
#include "row_lists.h"

namespace hedgerow {

// Whether a call may share its work with the pool.
enum class Threads { one, all };

// Each is a call of its own: not for use inside another. Results do not depend on the threads.

// out[i] = the number of queries[i] in the lists, numbered through. The place of the first query
// that is in none, or -1.
i64 find_rows(std::span<const IdList> lists, const u64* queries, u64 n, Threads threads, i64* out);

// out[i] = the row numbers[i]. Numbers are not checked.
void copy_rows(std::span<const RowList> lists, u64 row_bytes, const i64* numbers, u64 n,
               Threads threads, u8* out);

// Sets every row of the lists to the sum of the gradients with its number, in input order, or 0.
// Numbers are not checked. Value: float or double.
template <class Value>
void add_rows(std::span<const RowList> lists, u64 dim, const i64* numbers, u64 n, Threads threads,
              const Value* grads);

}  // namespace hedgerow
