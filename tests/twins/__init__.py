"""Plain twins of the C++ core and of the kernels: the same names and arguments, slow on purpose."""
