// Numbers ids, and finds them again.
#include "id_rows.h"

#include <algorithm>

namespace hedgerow {
namespace {

struct Range {
  i64 least, most;
};

Range range_of(std::span<const IdList> lists) {
  Range range{INT64_MAX, INT64_MIN};
  for (const IdList& list : lists)
    for (u64 i = 0; i < list.n; ++i) {
      range.least = std::min(range.least, i64(list.ids[i]));
      range.most = std::max(range.most, i64(list.ids[i]));
    }
  return range;
}

}  // namespace

IdRows::IdRows(std::span<const IdList> lists) {
  u64 ids = 0;
  for (const IdList& list : lists) ids += list.n;
  if (ids == 0) {
    map_.start(0);
    return;
  }
  const Range range = range_of(lists);
  const u64 beyond_first = u64(range.most) - u64(range.least);
  if (beyond_first < kPlacesPerId * ids) {
    least_ = u64(range.least);
    direct_ = Scratch<u32>(beyond_first + 1);
    place(lists, ids);
  } else {
    hash(lists, ids);
  }
}

void IdRows::place(std::span<const IdList> lists, u64 ids) {
  std::fill(direct_.begin(), direct_.end(), IdMap::kAbsent);
  u32 number = u32(ids);
  // From the last to the first, so that the first of equal ids stays.
  for (u64 l = lists.size(); l-- > 0;)
    for (u64 i = lists[l].n; i-- > 0;) direct_[lists[l].ids[i] - least_] = --number;
}

void IdRows::hash(std::span<const IdList> lists, u64 ids) {
  map_.start(ids);
  u32 number = 0;
  for (const IdList& list : lists)
    map_.each(
        list.n, [&](u64 i) { return list.ids[i]; },
        [&](u64 i, u64 home) { map_.insert(list.ids[i], number++, home); });
}

u64 IdRows::find(const u64* queries, u64 n, i64* out) const {
  u64 missing = n;
  const auto found = [&](u64 i, u32 number) {
    out[i] = i64(number);
    if (__builtin_expect(number == IdMap::kAbsent, 0)) missing = std::min(missing, i);
  };
  if (direct_.size() != 0) {
    const u32* const direct = direct_.data();
    const u64 size = direct_.size(), least = least_;
    for (u64 i = 0; i < n; ++i) {
      const u64 at = queries[i] - least;
      found(i, at < size ? direct[at] : IdMap::kAbsent);
    }
    return missing;
  }
  map_.each(
      n, [&](u64 i) { return queries[i]; },
      [&](u64 i, u64 home) { found(i, map_.find(queries[i], home)); });
  return missing;
}

}  // namespace hedgerow
