"""attnbench: export attention to ONNX and compare runtimes over T, with numbers that can be believed."""

__version__ = "0.1.0"
