"""Does NVIDIA's compiler fuse this attention? Asked of TensorRT-RTX, which compiles without a GPU."""
