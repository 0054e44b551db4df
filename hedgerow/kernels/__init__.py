"""GPU kernels in Triton, one family of operations per file."""
