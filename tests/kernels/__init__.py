"""Tests of hedgerow/kernels: in the interpreter, or on a GPU where there is one."""
