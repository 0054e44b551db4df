// Asks the table's admission rule about the absent ids of a call and takes refused ones out of the
// plan, before anything is reserved for them.
#include "table.h"

namespace hedgerow {
namespace {

constexpr u64 kKeepBytes = u64(32) << 20;  // of one buffer, between calls

// The sightings of a call's absent ids: one for each occurrence, or one for all of an id's. In the
// order of the batch: what a filter sees depends neither on threads nor on the slot key.
class Questions {
 public:
  Questions(Plan& plan, const Asking& asking) : plan_(plan), asking_(asking) {
    u64 sightings = 0;
    plan.start_ranks();
    for_each_absent([&](const Group& group) {
      plan.mark(group);
      sightings += asking.per_occurrence ? group.count : 1;
    });
    const u64 ids = plan.rank();
    all_ = {room().sightings.ensure(ids), ids};
    u64* next = room().occurrences.ensure(sightings);
    for_each_absent([&](const Group& group) {
      u64* const from = next;
      if (asking.per_occurrence) {
        for (u32 at : plan.occurrences(group)) *next++ = occurrences(at);
      } else {
        u64 total = 0;
        for (u32 at : plan.occurrences(group)) total += occurrences(at);
        *next++ = total;
      }
      all_[plan.rank_of(group)] = {group.key, from, u32(next - from), 0};
    });
  }
  ~Questions() {
    room().sightings.keep_at_most(kKeepBytes);
    room().occurrences.keep_at_most(kKeepBytes);
  }
  Questions(const Questions&) = delete;
  Questions& operator=(const Questions&) = delete;

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
  u64 occurrences(u32 at) const { return asking_.counts == nullptr ? 1 : u64(asking_.counts[at]); }

  template <class Body>
  void for_each_absent(const Body& body) {
    for (int shard = 0; shard < kShards; ++shard) {
      if (plan_.absent[shard] == 0) continue;
      for (const Group& group : plan_.groups(shard))
        if (group.row == kNoRow) body(group);
    }
  }

  Plan& plan_;
  const Asking& asking_;
  std::span<Sightings> all_;
};

}  // namespace

i64 Table::admit(Plan& plan, const Asking& asking) {
  Questions questions(plan, asking);
  admission_->ask(questions.all(), asking.step);
  i64 refused = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    if (plan.absent[shard] == 0) continue;
    plan.remove_groups(shard, [&](Group& group) {
      if (group.row != kNoRow) return false;
      const Sightings& one = questions.all()[plan.rank_of(group)];
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
