// What the bytes of a row mean: how a table's rows start, how they are read and how they are set.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "layout.h"

namespace hedgerow {

// What `assign` does with a row of zeros: it stores the row, or it erases the key.
enum class ZeroRows { store, erase };

class RowValues {
 public:
  RowValues(const std::vector<SegmentSpec>& segments, RowForm form, ZeroRows zero_rows, u64 seed)
      : layout_(segments, form), zero_rows_(zero_rows), seed_(seed) {}

  const RowLayout& layout() const { return layout_; }
  u64 dim() const { return u64(layout_.dim); }
  u64 state_floats() const { return u64(layout_.state_floats); }
  u64 seed() const { return seed_; }

  // The first values of a key's row, and the optimizer state it starts with. A serving row has no
  // state.
  void start(u64 key, float* values) const;
  void start_state(u8* row) const {
    if (layout_.serving()) return;
    float* const floats = reinterpret_cast<float*>(row);
    for (const Segment& segment : layout_.segments)
      std::copy(segment.initial_state.begin(), segment.initial_state.end(),
                floats + segment.state_from);
  }

  // The values a model sees at `step`: through the codec of each segment.
  void read(const u8* row, i64 step, float* out) const;

  // The stored values, without a model's view of them.
  void get(const u8* row, float* values) const {
    if (layout_.serving()) return decode(row, values);
    std::memcpy(values, row, sizeof(float) * dim());
  }
  void set(const float* values, u8* row) const {
    if (layout_.serving()) return encode(values, row);
    std::memcpy(row, values, sizeof(float) * dim());
  }

  // The stored values and the optimizer state.
  void copy(const u8* row, float* values, float* states) const {
    get(row, values);
    if (layout_.serving()) return;
    std::memcpy(states, row + sizeof(float) * dim(), sizeof(float) * state_floats());
  }
  void set_state(const float* states, u8* row) const {
    if (layout_.serving()) return;
    std::memcpy(row + sizeof(float) * dim(), states, sizeof(float) * state_floats());
  }

  // Whether `assign` erases the key of a row with these values.
  bool erases(const float* values) const {
    if (zero_rows_ == ZeroRows::store) return false;
    float squares = 0;
    for (int i = 0; i < layout_.dim; ++i) squares += values[i] * values[i];
    return squares < 0x1p-126f;  // zero, or too small for a normal float
  }

 private:
  void decode(const u8* row, float* out) const;
  void encode(const float* values, u8* row) const;

  RowLayout layout_;
  ZeroRows zero_rows_;
  u64 seed_;
};

}  // namespace hedgerow
