"""GPU kernels in Triton, one operation a file; `reference` holds a plain torch twin of each."""
