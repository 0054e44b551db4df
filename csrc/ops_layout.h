// From looked-up vectors to a model's dense inputs: what a configuration and a batch are to the
// loops.
#pragma once

#include <span>
#include <vector>

#include "bits.h"

namespace hedgerow {

enum class LayoutPooling : int { sum = 0, mean = 1, first_n = 3 };

// The type of the values in `feature_offset`.
enum class OffsetType { int32, int64 };

// One slice of one feature, and its place in one output. Strides and columns count values.
struct LayoutTask {
  static constexpr u64 kNumbers = 10;

  u64 feature;
  u64 output;
  LayoutPooling pooling;
  u64 length;  // positions of first_n, else 1
  u64 start;   // first column of the vector
  u64 width;
  u64 row_stride;
  u64 column;
  u64 position_stride;
  bool adds;  // an earlier task has set the values
};

// The tasks of a configuration, by feature. Immutable.
class LayoutPlan {
 public:
  // `numbers` holds the fields of one task after the other, sorted by feature.
  LayoutPlan(u64 features, const std::vector<i64>& numbers);  // throws std::invalid_argument

  u64 features() const { return first_.size() - 1; }
  u64 outputs() const { return outputs_; }
  std::span<const LayoutTask> tasks(u64 feature) const {
    return std::span(tasks_).subspan(first_[feature], first_[feature + 1] - first_[feature]);
  }
  // Columns of a feature's vector that are read: an id needs so many values from its offset on.
  u64 reach(u64 feature) const { return reach_[feature]; }

 private:
  std::vector<LayoutTask> tasks_;
  std::vector<u64> first_;  // of each feature, and the end
  std::vector<u64> reach_;
  u64 outputs_ = 0;
};

// Where one request lies in the index tensors and in the rows of the outputs.
struct LayoutRequest {
  static constexpr u64 kNumbers = 7;

  u64 nfl;      // first word in nfl_offset
  u64 offsets;  // first value in feature_offset
  u64 entries;  // one less than its values there
  u64 ids;      // first word in fid_offset
  u64 id_count;
  u64 row;  // first row of the outputs
  u64 rows;
};

// The rows of ids of one feature in one request.
struct Entries {
  u64 first;  // in feature_offset
  u64 count;  // 0, or 1 if shared, or one a row
  bool shared;
};

// Index tensors and the places of the vectors. Keeps addresses: the caller keeps the memory.
struct LayoutBatch {
  u64 lists;
  std::vector<LayoutRequest> requests;
  std::vector<u64> lengths;  // [requests, lists] values
  const i64* nfl;
  const void* offsets;
  OffsetType offset_type;
  const i64* ids;

  LayoutBatch(u64 lists, const std::vector<i64>& requests, const std::vector<i64>& lengths,
              const i64* nfl, const void* offsets, OffsetType offset_type, const i64* ids);

  i64 offset(u64 at) const {
    return offset_type == OffsetType::int64 ? static_cast<const i64*>(offsets)[at]
                                            : static_cast<const int*>(offsets)[at];
  }
  Entries entries(const LayoutRequest& request, u64 feature) const;
};

HR_INLINE u64 list_of(i64 word) { return u64(word) >> 32; }
HR_INLINE u64 offset_of(i64 word) { return u64(word) & 0xffffffffu; }
HR_INLINE u64 first_entry(i64 word) { return u64(word) & 0x7fffffffu; }
HR_INLINE bool is_shared(i64 word) { return (u64(word) >> 31 & 1) != 0; }

// What is wrong with a batch, where; `kind` is 0 when nothing is.
struct LayoutFault {
  enum Kind : i64 {
    none = 0,
    nfl_falls,    // at: place in nfl_offset
    nfl_end,      // beyond the entries of the request; at: place in nfl_offset
    entry_count,  // value: the entries there are
    offset,       // feature_offset falls or leaves the ids; at: place in feature_offset
    list,         // no such list; at: place in fid_offset
    past_end,     // the slices end beyond the list; at: place in fid_offset
  };
  i64 kind = none, request = 0, feature = 0, at = 0, value = 0;
};

// The first fault by request, feature and place, whatever the thread count.
LayoutFault check_layout(const LayoutPlan& plan, const LayoutBatch& batch);

// Throws std::invalid_argument unless there are as many addresses as the plan and the batch have
// lists and outputs.
void check_addresses(const LayoutPlan& plan, const LayoutBatch& batch, u64 lists, u64 outputs);

// T is float or double. `lists` has [requests, lists] addresses, `outputs` one per output; other
// counts throw std::invalid_argument. The batch has no fault. Every value of the outputs is set.
template <class T>
void layout_forward(const LayoutPlan& plan, const LayoutBatch& batch,
                    const std::vector<const T*>& lists, const std::vector<T*>& outputs);

// Sets the lists to the sum of what every use of a vector receives. An element's sum is taken in
// the order of features, rows, slices and ids.
template <class T>
void layout_backward(const LayoutPlan& plan, const LayoutBatch& batch,
                     const std::vector<const T*>& grads, T scale, const std::vector<T*>& lists);

}  // namespace hedgerow
