"""The messages of serving and of parameter sync, and tensors in them. Needs no TensorFlow."""
