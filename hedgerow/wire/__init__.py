"""Messages of serving and parameter sync, and tensors in them, without TensorFlow."""
