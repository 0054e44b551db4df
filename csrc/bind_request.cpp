// A plain PredictRequest as Python values, the answer to one that asks for rows, and one that
// brings them. They take bytes, not addresses: to find out an address takes longer than the work.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "message_rows.h"
#include "plain_request.h"

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

MessageBytes bytes_of(const nb::bytes& given) {
  return {reinterpret_cast<const u8*>(given.c_str()), given.size()};
}

// A bytes object of a size, not filled.
nb::object new_bytes(u64 size) {
  nb::object made = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size)));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

u8* data_of(const nb::object& bytes) {
  return reinterpret_cast<u8*>(PyBytes_AS_STRING(bytes.ptr()));
}

// The rows of ids that stand in a message, as bytes between two others.
nb::object lookup_between(std::vector<const Table*> tables, const nb::bytes& message, u64 start,
                          std::vector<u64> counts, const nb::bytes& head, const nb::bytes& tail) {
  const MessageLookup lookup(std::move(tables), bytes_of(message), start, std::move(counts));
  nb::object made = new_bytes(head.size() + lookup.row_bytes() + tail.size());
  u8* const out = data_of(made);
  std::memcpy(out, head.c_str(), head.size());
  std::memcpy(out + head.size() + lookup.row_bytes(), tail.c_str(), tail.size());
  {
    const nb::gil_scoped_release unlock;
    lookup.read(out + head.size());
  }
  return made;
}

// Ids and their rows, each behind bytes that are given for them, table after table. None where an
// id has no row.
nb::object rows_after(const std::vector<const Table*>& tables, const std::vector<Address>& ids,
                      const std::vector<u64>& counts, i64 step,
                      const std::vector<nb::bytes>& before_ids,
                      const std::vector<nb::bytes>& before_rows) {
  const std::size_t n = tables.size();
  if (ids.size() != n || counts.size() != n || before_ids.size() != n || before_rows.size() != n)
    throw std::invalid_argument("give ids, a count and the bytes before them for each of the " +
                                std::to_string(n) + " tables");
  std::vector<RowsMessage::Part> parts;
  for (std::size_t k = 0; k < n; ++k)
    parts.push_back({tables[k], at<const i64>(ids[k]), counts[k], bytes_of(before_ids[k]),
                     bytes_of(before_rows[k])});
  const RowsMessage message(std::move(parts));
  const nb::object made = new_bytes(message.size());
  bool complete = false;
  {
    const nb::gil_scoped_release unlock;
    complete = message.write(step, data_of(made));
  }
  return complete ? made : nb::none();
}

// Of one table in a message: the byte of its first id, how many there are, the byte of its first
// row.
using Place = std::tuple<u64, u64, u64>;

bool assign_in(const std::vector<Table*>& tables, const nb::bytes& message,
               const std::vector<Place>& places, const std::vector<i64>& times,
               const std::vector<bool>& rejects) {
  const std::size_t n = tables.size();
  if (places.size() != n || times.size() != n || rejects.size() != n)
    throw std::invalid_argument("give a place, a time and a rule for each of the " +
                                std::to_string(n) + " tables");
  std::vector<AssignedPart> parts;
  for (std::size_t k = 0; k < n; ++k) {
    const auto [ids_from, count, rows_from] = places[k];
    parts.push_back({tables[k], ids_from, count, rows_from, times[k],
                     rejects[k] ? NotFiniteRows::reject_message : NotFiniteRows::leave_out});
  }
  const MessageBytes bytes = bytes_of(message);
  const nb::gil_scoped_release unlock;
  return assign_message(bytes, parts);
}

}  // namespace

void bind_request(nb::module_& m) {
  m.def("plain_request", &plain_request);
  m.def("lookup_between", &lookup_between);
  m.def("rows_after", &rows_after);
  m.def("assign_in", &assign_in);
}

}  // namespace hedgerow
