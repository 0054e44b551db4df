// The ops on batches of ids and vectors.
#include "bind.h"
#include "scratch.h"

namespace hedgerow {

void bind_ops(nb::module_& m) {
  m.def("scratch_bytes", &scratch_bytes);
  m.def("reset_scratch_bytes", &reset_scratch_bytes);
  bind_route(m);
  bind_split(m);
  bind_layout(m);
  bind_gather(m);
}

}  // namespace hedgerow
