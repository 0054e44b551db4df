// The search of the index in plain code, with compares of four keys, and of a whole cache line.
#include "probe.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "shard_of.h"

namespace hedgerow {
namespace {

// A prefetch whose page is not in the translation cache takes its place among the instructions in
// flight until the page tables are read. Side by side, more of them are under way at once than with
// a hash between each two; where pages are known, the hashes hide the time of the lines.
struct FetchBody {
  static HR_INLINE void run(const ProbeArgs& args) {
    const SlotHash slot_hash = *args.hash;
    const bool side_by_side = args.n > kProbeGroup;
    const auto each = [&](const auto& then) {
      for (u64 i = 0; i < args.n; ++i) {
        const u64 hash = slot_hash(u64(args.keys[i]));
        args.homes[i] = args.views[shard_of(hash)].home(position_of(hash));
        then(args.homes[i]);
      }
    };
    if (!side_by_side) return each([](const Bucket* home) { fetch_line(home); });
    each([](const Bucket*) {});
    for (u64 i = 0; i < args.n; ++i) fetch_line(args.homes[i]);
  }
};

// What all ways to search a home share. `match` gives the slots of a bucket that hold a key, as
// bits.
template <class Match>
HR_INLINE u64 find_in_homes(const ProbeArgs& args, const Match& match) {
  u64 beyond = 0;
  for (u64 i = 0; i < args.n; ++i) {
    const Bucket& home = *args.homes[i];
    const u32 hit = match(home, args.keys[i]);
    if (__builtin_expect(hit != 0, 1)) {
      args.rows[i] = home.row[__builtin_ctz(hit)];
      continue;
    }
    args.rows[i] = kNoRow;
    if (home.passed() == 0) continue;
    beyond |= u64(1) << i;
    fetch_line(&home + 1);  // of the last bucket, the next is the first: then this is in vain
  }
  return beyond;
}

u64 find_plain(const ProbeArgs& args) {
  return find_in_homes(args, [](const Bucket& home, i64 key) { return home.match(u64(key)); });
}

#if defined(__x86_64__)
HR_TARGET_AVX2 u64 find_avx2(const ProbeArgs& args) {
  return find_in_homes(args, [](const Bucket& home, i64 key) HR_TARGET_AVX2 {
    const __m256i four = _mm256_load_si256(reinterpret_cast<const __m256i*>(&home));
    const __m256i equal = _mm256_cmpeq_epi64(four, _mm256_set1_epi64x(key));
    const u32 first = u32(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
    const u32 last = u32(home.key[4] == u64(key)) << 4;
    return (first | last) & ((u32(1) << home.used()) - 1);
  });
}

HR_TARGET_AVX512 u64 find_avx512(const ProbeArgs& args) {
  return find_in_homes(args, [](const Bucket& home, i64 key) HR_TARGET_AVX512 {
    const __m512i wanted = _mm512_set1_epi64(key);
    const u32 equal = _mm512_cmpeq_epi64_mask(_mm512_load_si512(&home), wanted);
    return equal & ((u32(1) << home.used()) - 1);
  });
}
#endif

}  // namespace

Probe probe_for(Isa isa) {
  const auto fetch = Variants<FetchBody, const ProbeArgs&>::pick(isa);
#if defined(__x86_64__)
  if (isa == Isa::avx512) return {fetch, &find_avx512};
  if (isa == Isa::avx2) return {fetch, &find_avx2};
#endif
  return {fetch, &find_plain};
}

void find_beyond(const ProbeArgs& args, u64 keys) {
  for (; keys != 0; keys &= keys - 1) {
    const int i = __builtin_ctzll(keys);
    const u64 key = u64(args.keys[i]), hash = (*args.hash)(key);
    args.rows[i] = find_in(args.views[shard_of(hash)], key, position_of(hash));
  }
}

template <u64 kGroup>
ProbeAhead<kGroup>::ProbeAhead(const SlotHash& hash, const IndexView* views, const i64* keys, u64 n,
                               u32* rows)
    : probe_(probe_for(active_isa())),
      hash_(&hash),
      views_(views),
      keys_(keys),
      n_(n),
      rows_(rows) {
  for (u64 start = 0; start + kGroup < kHomes; start += kGroup) probe_.fetch(group(start));
  beyond_ = probe_.find(group(0));
}

template <u64 kGroup>
ProbeArgs ProbeAhead<kGroup>::group(u64 start) {
  const u64 size = start < n_ ? std::min(kGroup, n_ - start) : 0;
  return {hash_, views_, keys_ + start, size, homes_ + start % kHomes, rows_ + start};
}

template <u64 kGroup>
void ProbeAhead<kGroup>::step() {
  if (at_ >= n_) return;
  probe_.fetch(group(at_ + kHomes - kGroup));
  const u64 later = probe_.find(group(at_ + kGroup));
  if (beyond_ != 0) find_beyond(group(at_), beyond_);
  beyond_ = later;
  at_ += kGroup;
}

template class ProbeAhead<kProbeGroup>;
template class ProbeAhead<kLargeProbeGroup>;

}  // namespace hedgerow
