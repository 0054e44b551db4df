// A map from 64-bit ids to 32-bit numbers for the ids of one batch: open addressing, no removal.
//
// Every bit pattern is an id: a slot is in use when its round is the map's, so emptying the map for
// the next table or feature of a batch costs nothing.
#pragma once

#include <bit>
#include <stdexcept>

#include "scratch.h"
#include "slot_hash.h"

namespace hedgerow {

class IdMap {
 public:
  static constexpr u32 kAbsent = ~u32(0);

  // Empties it and makes room for `most` ids; memory that suffices is kept.
  void start(u64 most) {
    if (most >= (u64(1) << 31)) throw std::length_error("more than 2^31 ids in one batch");
    const u64 wanted = std::bit_ceil(most < 8 ? 16 : 2 * most);
    if (wanted > slots_.size()) {
      slots_ = Scratch<Slot>(wanted);
      for (Slot& slot : slots_) slot.round = 0;
      round_ = 0;
    }
    // The part that is used fits this batch, so that few ids stay within few lines.
    shift_ = 64 - std::countr_zero(wanted);
    if (++round_ == 0) {
      for (Slot& slot : slots_) slot.round = 0;
      round_ = 1;
    }
  }

  // Runs body(i, home of id(i)) for i in [0, n), with the slots of the next ids on their way.
  template <class Id, class Body>
  HR_INLINE void each(u64 n, Id&& id, Body&& body) const {
    constexpr u64 kAhead = 16;
    const SlotHash hash = hash_;
    const int shift = shift_;
    u64 homes[kAhead];
    const auto fetch_home = [&](u64 i) {
      fetch_line(&slots_[homes[i % kAhead] = hash(id(i)) >> shift]);
    };
    for (u64 i = 0; i < (n < kAhead ? n : kAhead); ++i) fetch_home(i);
    for (u64 i = 0; i < n; ++i) {
      const u64 from = homes[i % kAhead];
      if (i + kAhead < n) fetch_home(i + kAhead);
      body(i, from);
    }
  }

  // The number of an id that is there already, else `number`, which it has from now on.
  HR_INLINE u32 insert(u64 id, u32 number) { return insert(id, number, home(id)); }
  HR_INLINE u32 insert(u64 id, u32 number, u64 from) {
    for (u64 at = from;; at = (at + 1) & mask()) {
      Slot& slot = slots_[at];
      if (slot.round != round_) {
        slot = {id, number, round_};
        return number;
      }
      if (slot.id == id) return slot.number;
    }
  }

  // The number of an id, or kAbsent.
  HR_INLINE u32 find(u64 id) const { return find(id, home(id)); }
  HR_INLINE u32 find(u64 id, u64 from) const {
    for (u64 at = from;; at = (at + 1) & mask()) {
      const Slot& slot = slots_[at];
      if (slot.round != round_) return kAbsent;
      if (slot.id == id) return slot.number;
    }
  }

 private:
  struct Slot {
    u64 id;
    u32 number;
    u32 round;
  };

  HR_INLINE u64 home(u64 id) const { return hash_(id) >> shift_; }
  HR_INLINE u64 mask() const { return (u64(1) << (64 - shift_)) - 1; }

  const SlotHash hash_ = process_hash();  // ids may be chosen by whoever writes logs
  Scratch<Slot> slots_;
  u32 round_ = 0;
  int shift_ = 60;
};

}  // namespace hedgerow
