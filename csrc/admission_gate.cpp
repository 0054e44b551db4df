// The sightings of absent ids, shown to the admission rule, and the plan without those refused.
#include "admission_gate.h"

#include "bucket.h"

namespace hedgerow {
namespace {

constexpr u64 kKeepBytes = u64(32) << 20;  // of one buffer, between calls

// The sightings of a call's absent ids: one for each occurrence, or one for all of an id's. In the
// order of the batch: what a filter sees depends neither on threads nor on the slot key.
class AbsentSightings {
 public:
  AbsentSightings(Plan& plan, const AdmissionContext& context) : plan_(plan), context_(context) {
    const bool one_each = context.equal_ids == EqualIds::one_step_each;
    u64 sightings = 0;
    plan.start_ranks();
    for_each_absent([&](const Group& group) {
      plan.mark(group);
      sightings += one_each ? group.count : 1;
    });
    const u64 ids = plan.rank();
    all_ = {room().sightings.ensure(ids), ids};
    u64* next = room().occurrences.ensure(sightings);
    for_each_absent([&](const Group& group) {
      u64* const from = next;
      if (one_each) {
        for (u32 at : plan.occurrences(group)) *next++ = occurrences(at);
      } else {
        u64 total = 0;
        for (u32 at : plan.occurrences(group)) total += occurrences(at);
        *next++ = total;
      }
      all_[plan.rank_of(group)] = {group.key, from, u32(next - from), 0};
    });
  }
  ~AbsentSightings() {
    room().sightings.keep_at_most(kKeepBytes);
    room().occurrences.keep_at_most(kKeepBytes);
  }
  AbsentSightings(const AbsentSightings&) = delete;
  AbsentSightings& operator=(const AbsentSightings&) = delete;

  std::span<Sightings> all() { return all_; }

 private:
  struct Room {
    Buffer<Sightings> sightings;
    Buffer<u64> occurrences;
  };
  static Room& room() {
    static thread_local Room room;
    return room;
  }
  u64 occurrences(u32 at) const {
    return context_.counts == nullptr ? 1 : u64(context_.counts[at]);
  }

  template <class Body>
  void for_each_absent(const Body& body) {
    for (int shard = 0; shard < kShards; ++shard) {
      if (plan_.absent[shard] == 0) continue;
      for (const Group& group : plan_.groups(shard))
        if (group.row == kNoRow) body(group);
    }
  }

  Plan& plan_;
  const AdmissionContext& context_;
  std::span<Sightings> all_;
};

}  // namespace

i64 AdmissionGate::refuse(Plan& plan, const AdmissionContext& context) const {
  AbsentSightings sightings(plan, context);
  rule_->ask(sightings.all(), context.step);
  i64 refused = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    if (plan.absent[shard] == 0) continue;
    plan.remove_groups(shard, [&](Group& group) {
      if (group.row != kNoRow) return false;
      const Sightings& one = sightings.all()[plan.rank_of(group)];
      if (one.refused == one.count) {
        refused += group.count;
        --plan.absent[shard];
        return true;
      }
      group.first += one.refused;  // of each occurrence: those before the one that was let in
      group.count -= one.refused;
      refused += one.refused;
      return false;
    });
  }
  return refused;
}

}  // namespace hedgerow
