// Plans and batches of layouts, and the check of a batch's indices.
#include "ops_layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kFewIds = u64(1) << 19;  // under a nanosecond each: not worth waking the pool for

LayoutPooling layout_pooling(i64 number) {
  for (const LayoutPooling known :
       {LayoutPooling::sum, LayoutPooling::mean, LayoutPooling::first_n})
    if (i64(known) == number) return known;
  throw std::invalid_argument("no pooling of a layout has the number " + std::to_string(number));
}

LayoutFault check_entries(const LayoutPlan& plan, const LayoutBatch& batch, u64 number,
                          u64 feature) {
  const LayoutRequest& request = batch.requests[number];
  const auto fault = [&](LayoutFault::Kind kind, u64 at, u64 value) {
    return LayoutFault{kind, i64(number), i64(feature), i64(at), i64(value)};
  };
  const u64 word = request.nfl + feature;
  const u64 begin = first_entry(batch.nfl[word]), end = first_entry(batch.nfl[word + 1]);
  if (end < begin) return fault(LayoutFault::nfl_falls, word + 1, end);
  if (end > request.entries + 1) return fault(LayoutFault::nfl_end, word + 1, end);
  const Entries entries = batch.entries(request, feature);
  if (entries.count != 0 && entries.count != (entries.shared ? 1 : request.rows))
    return fault(LayoutFault::entry_count, word, entries.count);
  const u64 reach = plan.reach(feature);
  const u64* lengths = batch.lengths.data() + number * batch.lists;
  i64 before = 0;
  for (u64 e = 0; e <= entries.count && entries.count != 0; ++e) {
    const i64 offset = batch.offset(entries.first + e);
    if (offset < before || offset > i64(request.id_count))
      return fault(LayoutFault::offset, entries.first + e, u64(offset));
    before = offset;
  }
  if (entries.count == 0) return {};
  const u64 last = request.ids + u64(before);
  for (u64 i = request.ids + u64(batch.offset(entries.first)); i < last; ++i) {
    const u64 list = list_of(batch.ids[i]);
    if (list >= batch.lists) return fault(LayoutFault::list, i, list);
    if (offset_of(batch.ids[i]) + reach > lengths[list])
      return fault(LayoutFault::past_end, i, offset_of(batch.ids[i]));
  }
  return {};
}

}  // namespace

LayoutPlan::LayoutPlan(u64 features, const std::vector<i64>& numbers)
    : first_(features + 1, 0), reach_(features, 0) {
  if (numbers.size() % LayoutTask::kNumbers != 0)
    throw std::invalid_argument("a task of a layout has 10 numbers");
  for (u64 i = 0; i < numbers.size(); i += LayoutTask::kNumbers) {
    const auto at = [&](u64 field) { return u64(numbers[i + field]); };
    const LayoutTask task{
        at(0), at(1),     layout_pooling(numbers[i + 2]), at(3), at(4), at(5), at(6), at(7),
        at(8), at(9) != 0};
    if (task.feature >= features || (!tasks_.empty() && task.feature < tasks_.back().feature))
      throw std::invalid_argument("tasks of a layout are not sorted by feature");
    tasks_.push_back(task);
    first_[task.feature + 1] = tasks_.size();
    reach_[task.feature] = std::max(reach_[task.feature], task.start + task.width);
    outputs_ = std::max(outputs_, task.output + 1);
  }
  for (u64 q = 0; q < features; ++q) first_[q + 1] = std::max(first_[q + 1], first_[q]);
}

void check_addresses(const LayoutPlan& plan, const LayoutBatch& batch, u64 lists, u64 outputs) {
  const auto check = [](u64 given, u64 wanted) {
    if (given != wanted)
      throw std::invalid_argument(std::to_string(given) + " addresses, not " +
                                  std::to_string(wanted));
  };
  check(lists, batch.lengths.size());
  check(outputs, plan.outputs());
}

LayoutBatch::LayoutBatch(u64 lists_, const std::vector<i64>& numbers,
                         const std::vector<i64>& lengths_, const i64* nfl_, const void* offsets_,
                         OffsetType offset_type_, const i64* ids_)
    : lists(lists_),
      lengths(lengths_.begin(), lengths_.end()),
      nfl(nfl_),
      offsets(offsets_),
      offset_type(offset_type_),
      ids(ids_) {
  if (numbers.size() % LayoutRequest::kNumbers != 0 ||
      lengths.size() != numbers.size() / LayoutRequest::kNumbers * lists)
    throw std::invalid_argument("a request of a layout has 7 numbers and a length a list");
  for (u64 i = 0; i < numbers.size(); i += LayoutRequest::kNumbers) {
    const auto at = [&](u64 field) { return u64(numbers[i + field]); };
    requests.push_back({at(0), at(1), at(2), at(3), at(4), at(5), at(6)});
  }
}

Entries LayoutBatch::entries(const LayoutRequest& request, u64 feature) const {
  const i64* word = nfl + request.nfl + feature;
  const u64 begin = first_entry(word[0]);
  const u64 end = std::min(first_entry(word[1]), request.entries);
  return {request.offsets + begin, end > begin ? end - begin : 0, is_shared(word[0])};
}

LayoutFault check_layout(const LayoutPlan& plan, const LayoutBatch& batch) {
  const CallScope scope;
  const u64 units = batch.requests.size() * plan.features();
  u64 ids = 0;
  for (const LayoutRequest& request : batch.requests) ids += request.id_count;
  const u64 parts = ids < kFewIds ? 1 : std::min(units, u64(2 * thread_count()));
  std::vector<LayoutFault> found(std::max<u64>(parts, 1));
  parallel_for(i64(parts), [&](i64 part) {
    const u64 last = units * u64(part + 1) / parts;
    for (u64 unit = units * u64(part) / parts; unit < last && found[part].kind == 0; ++unit)
      found[part] = check_entries(plan, batch, unit / plan.features(), unit % plan.features());
  });
  for (const LayoutFault& fault : found)
    if (fault.kind != 0) return fault;
  return {};
}

}  // namespace hedgerow
