// Dedup of many slots at once: a pass that numbers the ids of each slot, then one that places them.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "id_map.h"
#include "memory.h"
#include "pool.h"
#include "reorder.h"
#include "shard_rule.h"

namespace hedgerow {
namespace {

constexpr u64 kTooMany = u64(1) << 31;
constexpr u64 kWorthThreads = u64(1) << 16;  // ids: a millisecond or more

class Work {
 public:
  Work(const FusedReorderArgs& args, const FusedReorderOut& out)
      : args_(args), out_(out), starts_(args.slots.size() + 1), unique_(args.slots.size()) {
    starts_[0] = 0;
    for (u64 m = 0; m < args.slots.size(); ++m) starts_[m + 1] = starts_[m] + args.slots[m].n;
    first_ = Scratch<u32>(starts_[args.slots.size()]);
    shard_ = Scratch<u32>(starts_[args.slots.size()]);
  }

  template <class Shard>
  Reordered run(Shard shard) {
    const u64 slots = args_.slots.size();
    each_slot([&](u64 m, IdMap& map, u32* counts) {
      number(m, map, counts, shard);
      for (u64 s = 0; s < args_.shard_count; ++s) out_.slot_sizes[s * slots + m] = i32(counts[s]);
    });
    const Reordered all = totals();
    if (all.ids >= kTooMany || all.values >= kTooMany) return all;
    set_starts();
    each_slot([&](u64 m, IdMap&, u32* next_id) { place(m, next_id); });
    return all;
  }

 private:
  // Runs body(slot, map, a number for each shard) for each slot, with a map for each thread.
  template <class Body>
  void each_slot(Body&& body) {
    const u64 slots = args_.slots.size();
    std::atomic<u64> next{0};
    const u64 threads = starts_[slots] < kWorthThreads ? 1 : u64(thread_count());
    parallel_for(i64(std::min(slots, threads)), [&](i64) {
      IdMap map;
      const Scratch<u32> of_shards(args_.shard_count);
      for (u64 m; (m = next.fetch_add(1, std::memory_order_relaxed)) < slots;)
        body(m, map, of_shards.data());
    });
  }

  // Gives the different ids of a slot numbers as first seen; the offsets' room holds them for now.
  template <class Shard>
  void number(u64 m, IdMap& map, u32* counts, Shard shard) {
    const SlotIds slot = args_.slots[m];
    i32* const numbers = out_.offsets + starts_[m];
    u32* const first = first_.data() + starts_[m];
    u32* const shards = shard_.data() + starts_[m];
    std::fill_n(counts, args_.shard_count, 0);
    map.start(slot.n);
    u32 kept = 0;
    map.each(
        slot.n, [&](u64 i) { return slot.ids[i]; },
        [&](u64 i, u64 home) {
          const u64 id = slot.ids[i];
          const u32 number = map.insert(id, kept, home);
          numbers[i] = i32(number);
          if (number != kept) return;
          const u32 owner = shard(id);
          first[kept] = u32(i);
          shards[kept++] = owner;
          ++counts[owner];
        });
    unique_[m] = kept;
  }

  Reordered totals() const {
    u64 ids = 0;
    u128 values = 0;
    for (u64 m = 0; m < args_.slots.size(); ++m) {
      ids += unique_[m];
      values += u128(unique_[m]) * args_.slots[m].dim;
    }
    return {ids, u64(std::min(values, u128(1) << 63))};
  }

  void set_starts() {
    const u64 slots = args_.slots.size();
    id_start_ = Scratch<u32>(args_.shard_count * slots);
    value_start_ = Scratch<u32>(args_.shard_count * slots);
    u32 ids = 0, values = 0;
    for (u64 s = 0; s < args_.shard_count; ++s) {
      const u32 before = ids;
      for (u64 m = 0; m < slots; ++m) {
        const u32 size = u32(out_.slot_sizes[s * slots + m]);
        id_start_[s * slots + m] = ids;
        value_start_[s * slots + m] = values;
        ids += size;
        values += u32(size * args_.slots[m].dim);
      }
      out_.shard_sizes[s] = i32(ids - before);
    }
  }

  void place(u64 m, u32* next_id) {
    const u64 slots = args_.slots.size();
    const SlotIds slot = args_.slots[m];
    const u32* const first = first_.data() + starts_[m];
    u32* const offset = shard_.data() + starts_[m];  // over the shard, when that was read
    for (u64 s = 0; s < args_.shard_count; ++s) next_id[s] = id_start_[s * slots + m];
    for (u64 k = 0; k < unique_[m]; ++k) {
      const u64 cell = offset[k] * slots + m;
      const u32 at = next_id[offset[k]]++;
      out_.ids[at] = slot.ids[first[k]];
      offset[k] = value_start_[cell] + u32((at - id_start_[cell]) * slot.dim);
    }
    i32* const offsets = out_.offsets + starts_[m];
    for (u64 i = 0; i < slot.n; ++i) offsets[i] = i32(offset[offsets[i]]);
  }

  const FusedReorderArgs& args_;
  const FusedReorderOut& out_;
  Scratch<u64> starts_;    // of each slot in the arrays over all ids
  Scratch<u32> unique_;    // different ids of each slot
  Scratch<u32> first_;     // by slot and number: the place of the id in its slot
  Scratch<u32> shard_;     // by slot and number: its shard, then the offset of its vector
  Scratch<u32> id_start_;  // by shard and slot
  Scratch<u32> value_start_;
};

}  // namespace

Reordered fused_reorder(const FusedReorderArgs& args, const FusedReorderOut& out) {
  const CallScope scope;
  Work work(args, out);
  const u64 skipped = args.rank0_empty, owners = args.shard_count - skipped;
  return with_shard_rule(owners, skipped, [&](auto rule) { return work.run(rule); });
}

}  // namespace hedgerow
