"""A model of the user in the benchmark: an ONNX file, or a module that is traced and exported."""
