// A plain PredictRequest as Python values, the answer to one that asks for rows, and one that
// brings them. The first two take bytes, not addresses: to find out an address takes longer than
// the work.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "finite.h"
#include "plain_request.h"
#include "pool.h"
#include "table.h"

namespace hedgerow {
namespace {

// A str, or nothing where the bytes are no text.
nb::object text(const char* data, Span span) {
  PyObject* made = PyUnicode_DecodeUTF8(data + span.at, Py_ssize_t(span.size), nullptr);
  if (made == nullptr) PyErr_Clear();
  return nb::steal(made);
}

nb::object shape(const PlainInput& input) {
  nb::object made = nb::steal(PyTuple_New(input.rank));
  for (int i = 0; i < input.rank; ++i)
    PyTuple_SET_ITEM(made.ptr(), i, PyLong_FromLongLong(input.dims[i]));
  return made;
}

nb::object plain_request(const nb::bytes& message) {
  const char* data = message.c_str();
  const auto found = read_plain_request(reinterpret_cast<const u8*>(data), message.size());
  if (!found) return nb::none();
  nb::object model = text(data, found->model), signature = text(data, found->signature);
  if (!model.is_valid() || !signature.is_valid()) return nb::none();
  nb::dict inputs;
  for (const PlainInput& input : found->inputs) {
    nb::object alias = text(data, input.alias);
    if (!alias.is_valid() || inputs.contains(alias)) return nb::none();
    inputs[alias] = nb::make_tuple(input.dtype, shape(input), input.content.at, input.content.size);
  }
  nb::object version = nb::none();
  if (found->version) version = nb::int_(*found->version);
  return nb::make_tuple(model, version, signature, inputs);
}

// Whether so many ids stand in a message from byte `start` on; no sum of these can wrap.
bool stand_in(u64 size, u64 start, const std::vector<u64>& counts) {
  if (start > size) return false;
  u64 room = (size - start) / sizeof(i64);
  for (const u64 count : counts) {
    if (count > room) return false;
    room -= count;
  }
  return true;
}

// Rows of ids that stand in a message from byte `start` on, the first counts[0] of them of
// tables[0] and so on, as bytes between two others.
nb::object lookup_between(const std::vector<const Table*>& tables, const nb::bytes& message,
                          u64 start, const std::vector<u64>& counts, const nb::bytes& head,
                          const nb::bytes& tail) {
  if (tables.size() != counts.size())
    throw std::invalid_argument(std::to_string(counts.size()) + " counts for " +
                                std::to_string(tables.size()) + " tables; give one for each");
  if (std::find(tables.begin(), tables.end(), nullptr) != tables.end())
    throw std::invalid_argument("one of the tables is None; give tables");
  if (!stand_in(message.size(), start, counts))
    throw std::invalid_argument("the ids from byte " + std::to_string(start) +
                                " on end beyond the message of " + std::to_string(message.size()));
  u64 n = 0, floats = 0;
  for (std::size_t k = 0; k < tables.size(); ++k) {
    n += counts[k];
    floats += counts[k] * u64(tables[k]->layout().dim);
  }
  const u64 before = head.size(), row_bytes = floats * sizeof(float), after = tail.size();
  nb::object made =
      nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(before + row_bytes + after)));
  if (!made.is_valid()) throw nb::python_error();
  char* out = PyBytes_AS_STRING(made.ptr());
  const char* stored = message.c_str() + start;
  std::memcpy(out, head.c_str(), before);
  std::memcpy(out + before + row_bytes, tail.c_str(), after);
  const nb::gil_scoped_release unlock;
  // Ids and rows may stand at any byte of a message; a table wants them where numbers stand.
  const std::unique_ptr<i64[]> ids(new i64[n]);
  const std::unique_ptr<float[]> rows(new float[floats]);
  std::memcpy(ids.get(), stored, n * sizeof(i64));
  const i64* next_id = ids.get();
  float* next_row = rows.get();
  for (std::size_t k = 0; k < tables.size(); ++k) {
    tables[k]->lookup(next_id, counts[k], Missing::zeros, 0, next_row, OutputMemory::reused);
    next_id += counts[k];
    next_row += counts[k] * u64(tables[k]->layout().dim);
  }
  std::memcpy(out + before, rows.get(), row_bytes);
  return made;
}

// Whether all ids have rows, of which these were read: one that has none reads as zeros.
bool all_there(const Table& table, const i64* ids, u64 n, const float* rows) {
  const u64 dim = u64(table.layout().dim);
  std::vector<i64> doubtful;
  for (u64 i = 0; i < n; ++i)
    if (rows[i * dim] == 0.0f) doubtful.push_back(ids[i]);
  std::vector<u8> found(doubtful.size());
  if (!doubtful.empty()) table.contains(doubtful.data(), doubtful.size(), found.data());
  return std::find(found.begin(), found.end(), u8(0)) == found.end();
}

// Ids and their rows, each behind bytes that are given for them, table after table. None where an
// id has no row.
nb::object rows_after(const std::vector<const Table*>& tables, const std::vector<Address>& ids,
                      const std::vector<u64>& counts, i64 step,
                      const std::vector<nb::bytes>& before_ids,
                      const std::vector<nb::bytes>& before_rows) {
  const std::size_t shares = tables.size();
  if (ids.size() != shares || counts.size() != shares || before_ids.size() != shares ||
      before_rows.size() != shares)
    throw std::invalid_argument("give ids, a count and the bytes before them for each of the " +
                                std::to_string(shares) + " tables");
  if (std::find(tables.begin(), tables.end(), nullptr) != tables.end())
    throw std::invalid_argument("one of the tables is None; give tables");
  u64 size = 0, most_floats = 0;
  for (std::size_t k = 0; k < shares; ++k) {
    const u64 floats = counts[k] * u64(tables[k]->layout().dim);
    size += before_ids[k].size() + before_rows[k].size();
    size += counts[k] * sizeof(i64) + floats * sizeof(float);
    most_floats = std::max(most_floats, floats);
  }
  nb::object made = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size)));
  if (!made.is_valid()) throw nb::python_error();
  char* out = PyBytes_AS_STRING(made.ptr());
  const auto put = [&](const void* data, u64 bytes) {
    if (bytes != 0) std::memcpy(out, data, bytes);
    out += bytes;
  };
  bool there = true;
  {
    const nb::gil_scoped_release unlock;
    const RunAlone alone(true);  // the other cores are the trainer's
    std::vector<float> aside;    // for rows that would stand where no floats can
    for (std::size_t k = 0; k < shares && there; ++k) {
      const u64 n = counts[k], row_bytes = n * u64(tables[k]->layout().dim) * sizeof(float);
      const i64* const keys = at<const i64>(ids[k]);
      put(before_ids[k].c_str(), before_ids[k].size());
      put(keys, n * sizeof(i64));
      put(before_rows[k].c_str(), before_rows[k].size());
      const bool stands = reinterpret_cast<Address>(out) % alignof(float) == 0;
      if (!stands) aside.resize(most_floats);
      float* const rows = stands ? reinterpret_cast<float*>(out) : aside.data();
      tables[k]->lookup(keys, n, Missing::zeros, step, rows, OutputMemory::reused);
      there = all_there(*tables[k], keys, n, rows);
      if (!stands && row_bytes != 0) std::memcpy(out, rows, row_bytes);
      out += row_bytes;
    }
  }
  if (!there) return nb::none();
  return made;
}

// Of one table in a message: the byte of its first id, how many there are, the byte of its first
// row.
using Place = std::tuple<u64, u64, u64>;

// Where numbers of a kind stand in a message from a byte on; null where none can in memory.
template <class Number>
const Number* numbers_in(const nb::bytes& message, u64 start, u64 count) {
  if (start > message.size() || count > (message.size() - start) / sizeof(Number))
    throw std::invalid_argument(std::to_string(count) + " numbers from byte " +
                                std::to_string(start) + " on end beyond the message of " +
                                std::to_string(message.size()));
  const char* const from = message.c_str() + start;
  const bool aligned = reinterpret_cast<Address>(from) % alignof(Number) == 0;
  return aligned ? reinterpret_cast<const Number*>(from) : nullptr;
}

// Assigns ids and rows out of a message. False, with nothing changed, where numbers cannot stand so
// in memory, or a table that rejects them would get a value that is not finite. In one thread: keys
// that changed come shard by shard, so threads would wait for each other at the locks of one or
// two, on cores that readers want.
bool assign_in(const std::vector<Table*>& tables, const nb::bytes& message,
               const std::vector<Place>& places, const std::vector<i64>& times,
               const std::vector<bool>& rejects) {
  const std::size_t shares = tables.size();
  if (places.size() != shares || times.size() != shares || rejects.size() != shares)
    throw std::invalid_argument("give a place, a time and a rule for each of the " +
                                std::to_string(shares) + " tables");
  if (std::find(tables.begin(), tables.end(), nullptr) != tables.end())
    throw std::invalid_argument("one of the tables is None; give tables");
  std::vector<const i64*> ids(shares);
  std::vector<const float*> rows(shares);
  for (std::size_t k = 0; k < shares; ++k) {
    const auto [ids_from, n, rows_from] = places[k];
    ids[k] = numbers_in<i64>(message, ids_from, n);
    rows[k] = numbers_in<float>(message, rows_from, n * u64(tables[k]->layout().dim));
    if (ids[k] == nullptr || rows[k] == nullptr) return false;
  }
  const nb::gil_scoped_release unlock;
  const RunAlone alone(true);
  for (std::size_t k = 0; k < shares; ++k)
    if (rejects[k] &&
        first_not_finite(rows[k], std::get<1>(places[k]) * u64(tables[k]->layout().dim)) >= 0)
      return false;
  for (std::size_t k = 0; k < shares; ++k)
    tables[k]->assign(ids[k], std::get<1>(places[k]), rows[k], times[k]);
  return true;
}

}  // namespace

void bind_request(nb::module_& m) {
  m.def("plain_request", &plain_request);
  m.def("lookup_between", &lookup_between);
  m.def("rows_after", &rows_after);
  m.def("assign_in", &assign_in);
}

}  // namespace hedgerow
