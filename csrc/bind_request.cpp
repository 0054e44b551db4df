// A plain PredictRequest as Python values. It takes bytes, not an address: a request is parsed in
// less time than its address is found out.
#include "bind.h"
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

}  // namespace

void bind_request(nb::module_& m) { m.def("plain_request", &plain_request); }

}  // namespace hedgerow
