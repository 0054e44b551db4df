// What the files of the Python module share: addresses and sizes in, plain values out, the GIL
// released. Python has checked dtype, device, contiguity and length; the caller keeps its buffers
// alive during the call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace hedgerow {

namespace nb = nanobind;
using namespace nb::literals;

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

inline const auto unlocked = nb::call_guard<nb::gil_scoped_release>();

void bind_admission(nb::module_& m);
void bind_bags(nb::module_& m);
void bind_layout(nb::module_& m);
void bind_gather(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_request(nb::module_& m);
void bind_route(nb::module_& m);
void bind_split(nb::module_& m);
void bind_table(nb::module_& m);

}  // namespace hedgerow
