// Rows segment by segment, each with its initializer and its codec.
#include "row_values.h"

namespace hedgerow {

void RowValues::start(u64 key, float* values) const {
  for (const Segment& segment : layout_.segments)
    first_values(segment.init, seed_, key, segment.first_column, segment.dim,
                 values + segment.first_column);
}

void RowValues::decode(const u8* row, float* out) const {
  for (const Segment& segment : layout_.segments)
    hedgerow::decode(segment.codec, row + segment.encoded_from, segment.dim,
                     out + segment.first_column);
}

void RowValues::encode(const float* values, u8* row) const {
  for (const Segment& segment : layout_.segments)
    hedgerow::encode(segment.codec, values + segment.first_column, segment.dim,
                     row + segment.encoded_from);
}

void RowValues::read(const u8* row, i64 step, float* out) const {
  if (layout_.serving()) return decode(row, out);
  const float* values = reinterpret_cast<const float*>(row);
  if (layout_.plain) {
    std::memcpy(out, values, sizeof(float) * dim());
    return;
  }
  for (const Segment& segment : layout_.segments)
    view_forward(segment.codec, step, values + segment.first_column, segment.dim,
                 out + segment.first_column);
}

}  // namespace hedgerow
