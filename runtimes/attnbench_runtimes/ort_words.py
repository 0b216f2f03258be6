"""ONNX Runtime's messages as one sentence that names the operator; its full words stay the cause of the error."""

import re

_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)\((\d+)\) node with name '(.*?)'")
_FAILED = re.compile(r"returned while running (\w+) node\. Name:'(.*?)' Status Message: (.*)", re.DOTALL)
_ALLOCATION = re.compile(r"[Ff]ailed to allocate memory for requested buffer of size (\d+)")
_PREFIX = re.compile(r"^(?:\w+: )?\[ONNXRuntimeError\] : (?:\d+ : [A-Z_]+ : )?")
_SOURCE = re.compile(r"^/\S+\.(?:cc|h|cpp):\d+ ")


def plain(error: Exception, *, dtype: str = "") -> str:
    """One sentence: the operator, what it lacks or why it failed.

    Args:
        error: of onnxruntime.
        dtype: of the file, where it is known; ONNX Runtime does not tell the type that a node lacks a kernel for.
    """
    text = str(error).strip()
    if found := _NO_KERNEL.search(text):
        operator, version, node = found.groups()
        needs = f", which this {dtype} file needs" if dtype else ""
        where = f" (node {node})" if node else ""
        return f"onnxruntime has no kernel for {operator} of opset {version}{needs}{where}"
    if found := _FAILED.search(text):
        operator, node, why = found.groups()
        return f"{operator}{f' (node {node})' if node else ''} fails in onnxruntime: {_why(why)}"
    return _why(_PREFIX.sub("", text)) or "onnxruntime gives no reason"


def _why(message: str) -> str:
    """A status message without its place in the source: what it explains, else the condition that was false."""
    if asked := _ALLOCATION.search(message):
        return f"out of memory for a buffer of {asked[1]} bytes"
    first = message.strip().splitlines()[0] if message.strip() else ""
    if not _SOURCE.match(first):
        return first
    condition, _, explanation = first.partition(" was false.")
    return explanation.strip() or f"{condition.rsplit(') ', 1)[-1].strip()} does not hold"
