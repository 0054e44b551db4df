// Numbering and listing of a batch's ids, features in parallel.
#include "shard_fids.h"

#include <algorithm>

#include "id_map.h"
#include "pool.h"
#include "shard_rule.h"

namespace hedgerow {
namespace {

constexpr u64 kFewIds = 8192;  // not worth waking the pool for

// Features [first, last) of each part: near equal numbers of ids. Which feature falls into which
// part changes no result.
std::vector<u64> parts_of(const std::vector<FeatureRows>& features) {
  u64 ids = 0;
  for (const FeatureRows& feature : features) ids += feature.count;
  const u64 wanted = ids < kFewIds || thread_count() == 1 ? 1 : 4 * u64(thread_count());
  std::vector<u64> borders{0};
  u64 seen = 0;
  for (u64 q = 0; q < features.size(); ++q) {
    seen += features[q].count;
    if (seen * wanted >= ids * borders.size() || q + 1 == features.size()) borders.push_back(q + 1);
  }
  return borders;
}

template <class Body>
void each_part(const std::vector<FeatureRows>& features, Body&& body) {
  const std::vector<u64> borders = parts_of(features);
  parallel_for(i64(borders.size()) - 1,
               [&](i64 part) { body(borders[u64(part)], borders[u64(part) + 1]); });
}

bool cuts_rows(const FeatureRows& feature) {
  if (feature.splits[0] != 0 || feature.splits[feature.rows] != i64(feature.count)) return false;
  for (u64 r = 0; r < feature.rows; ++r)
    if (feature.splits[r + 1] < feature.splits[r]) return false;
  return true;
}

template <bool kUnique, class ShardOf>
void number_feature(const FeatureRows& feature, const ShardOf& shard_of, IdMap& map, i64* words,
                    i64* counts) {
  const u64* ids = reinterpret_cast<const u64*>(feature.ids);
  words += feature.first_id;
  const auto set = [&](u64 i, const auto& number_of) {
    const u64 shard = shard_of(ids[i]);
    const u32 next = u32(counts[shard]), number = number_of(next);
    counts[shard] += number == next;
    words[i] = i64(shard << 32 | number);
  };
  if constexpr (kUnique) {
    map.start(feature.count);
    map.each(
        feature.count, [&](u64 i) { return ids[i]; },
        [&](u64 i, u64 home) { set(i, [&](u32 next) { return map.insert(ids[i], next, home); }); });
  } else {
    for (u64 i = 0; i < feature.count; ++i) set(i, [](u32 next) { return next; });
  }
}

template <class ShardOf>
void number_features(const std::vector<FeatureRows>& features, u64 shards, EqualFids equal,
                     const ShardOf& shard_of, i64* words, int* offsets, i64* counts) {
  std::fill(counts, counts + features.size() * shards, 0);
  each_part(features, [&](u64 first, u64 last) {
    IdMap map;
    for (u64 q = first; q < last; ++q) {
      const FeatureRows& feature = features[q];
      for (u64 r = 0; r < feature.rows; ++r)
        offsets[feature.first_entry + r] = int(feature.first_id + u64(feature.splits[r]));
      if (equal == EqualFids::listed_once)
        number_feature<true>(feature, shard_of, map, words, counts + q * shards);
      else
        number_feature<false>(feature, shard_of, map, words, counts + q * shards);
    }
  });
}

}  // namespace

i64 number_fids(const std::vector<FeatureRows>& features, u64 shards, EqualFids equal, i64* words,
                int* offsets, i64* counts) {
  const CallScope scope;
  for (u64 q = 0; q < features.size(); ++q)
    if (!cuts_rows(features[q])) return i64(q);
  with_shard_rule(shards, 0, [&](auto rule) {
    number_features(features, shards, equal, rule, words, offsets, counts);
  });
  return -1;
}

void place_fids(const std::vector<FeatureRows>& features, const std::vector<FeatureLists>& lists,
                u64 shards, const i64* rows, const i64* values, i64* words, i64* fids) {
  const CallScope scope;
  each_part(features, [&](u64 first, u64 last) {
    Scratch<u64> listed(shards);
    for (u64 q = first; q < last; ++q) {
      std::fill(listed.begin(), listed.end(), 0);
      const FeatureRows& feature = features[q];
      for (u64 i = 0; i < feature.count; ++i) {
        i64& word = words[feature.first_id + i];
        const u64 shard = u64(word) >> 32, number = u64(word) & 0xffffffffu;
        const u64 place = q * shards + shard;
        if (number == listed[shard]) {  // seen for the first time
          fids[u64(rows[place]) + number] = feature.ids[i];
          ++listed[shard];
        }
        const u64 list = lists[q].table * shards + shard;
        word = i64(list << 32 | (u64(values[place]) + number * lists[q].width));
      }
    }
  });
}

}  // namespace hedgerow
