// Runs of equal ids that stand side by side in a batch.
#pragma once

#include <algorithm>
#include <array>

#include "bits.h"

namespace hedgerow {

// The places 0, 1, 2, ...: of ids that are taken one by one.
template <u64 kMost>
inline constexpr auto kOneByOne = [] {
  std::array<u32, kMost + 1> places{};
  for (u64 i = 0; i < places.size(); ++i) places[i] = u32(i);
  return places;
}();

// At most kMost ids without those that equal the one before: sorted batches are full of them. Where
// they seem to be few all ids are taken, since to leave some out would cost more than to search
// them.
template <u64 kMost>
class IdRuns {
 public:
  struct View {
    const i64* keys;
    const u32* places;  // [n + 1]: key i is that of the ids from places[i] up to places[i + 1]
    u64 n;
  };

  IdRuns(const i64* ids, u64 count) : view_{ids, kOneByOne<kMost>.data(), count} {
    const u64 some = std::min(count, kSampleIds);
    u64 repeated = 0;
    for (u64 i = 1; i < some; ++i) repeated += ids[i] == ids[i - 1];
    if (repeated <= some / 8) return;
    u64 n = 0;
    places_[0] = 0;
    for (u64 i = 0; i < count; ++i) {
      keys_[n] = ids[i];
      places_[n + 1] = u32(i) + 1;
      n += i + 1 == count || ids[i + 1] != ids[i];
    }
    view_ = {keys_, places_, n};
  }
  IdRuns(const IdRuns&) = delete;
  IdRuns& operator=(const IdRuns&) = delete;

  View view() const { return view_; }

 private:
  static constexpr u64 kSampleIds = 64;  // the first ids show whether there are runs

  View view_;
  i64 keys_[kMost];
  u32 places_[kMost + 1];
};

}  // namespace hedgerow
