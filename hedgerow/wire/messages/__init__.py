"""One module a .proto file: its messages and enums, built when first asked for, with types."""
