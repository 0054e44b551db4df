// The search of the index in plain code and with one compare of a whole cache line.
#include "probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "shard_of.h"

namespace hedgerow {
namespace {

struct FetchBody {
  static HR_INLINE void run(const ProbeArgs& args) {
    for (u64 i = 0; i < args.n; ++i) {
      if (i != 0 && args.keys[i] == args.keys[i - 1]) {  // ids often come in runs
        args.homes[i] = args.homes[i - 1];
        continue;
      }
      const u64 hash = slot_hash(u64(args.keys[i]));
      args.homes[i] = args.views[shard_of(hash)].home(position_of(hash));
      __builtin_prefetch(args.homes[i]);
    }
  }
};

// The key is not in its home, but others that belong there have moved on: it may have, too.
u32 find_beyond_home(const ProbeArgs& args, u64 i) {
  const u64 key = u64(args.keys[i]), hash = slot_hash(key);
  return find_in(args.views[shard_of(hash)], key, position_of(hash));
}

void find_plain(const ProbeArgs& args) {
  for (u64 i = 0; i < args.n; ++i) {
    if (i != 0 && args.keys[i] == args.keys[i - 1]) {
      args.rows[i] = args.rows[i - 1];
      continue;
    }
    const Bucket& home = *args.homes[i];
    const u32 hit = home.match(u64(args.keys[i]));
    if (__builtin_expect(hit != 0, 1)) {
      args.rows[i] = home.row[__builtin_ctz(hit)];
    } else {
      args.rows[i] = home.passed() == 0 ? kNoRow : find_beyond_home(args, i);
    }
  }
}

#if defined(__x86_64__)
HR_TARGET_AVX512 void find_avx512(const ProbeArgs& args) {
  for (u64 i = 0; i < args.n; ++i) {
    if (i != 0 && args.keys[i] == args.keys[i - 1]) {
      args.rows[i] = args.rows[i - 1];
      continue;
    }
    const Bucket& home = *args.homes[i];
    const __m512i wanted = _mm512_set1_epi64(args.keys[i]);
    const u32 equal = _mm512_cmpeq_epi64_mask(_mm512_load_si512(&home), wanted);
    const u32 hit = equal & ((u32(1) << home.used()) - 1);
    if (__builtin_expect(hit != 0, 1)) {
      args.rows[i] = home.row[__builtin_ctz(hit)];
    } else {
      args.rows[i] = home.passed() == 0 ? kNoRow : find_beyond_home(args, i);
    }
  }
}
#endif

}  // namespace

Probe probe_for(Isa isa) {
  const auto fetch = Variants<FetchBody, const ProbeArgs&>::pick(isa);
#if defined(__x86_64__)
  if (isa == Isa::avx512) return {fetch, &find_avx512};
#endif
  return {fetch, &find_plain};
}

}  // namespace hedgerow
