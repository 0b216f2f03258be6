"""Weights that a module shares stay shared in its file: torch writes a tied weight once per use, often transposed."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_LEAST_BYTES = 1024  # smaller tensors are constants of the graph, not weights


def share_weights(model: Any) -> dict[str, str]:
    """Keep one of all initializers with the same content, in place; copy -> the initializer that stands for it.

    A matrix that is the transpose of another one becomes a Transpose of it, which runtimes fold when they load.
    """
    from onnx import helper

    kept: dict[str, str] = {}  # digest -> name
    same: dict[str, str] = {}
    transposed: dict[str, str] = {}
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < _LEAST_BYTES:
            continue
        content = _digest(tensor.data_type, tuple(tensor.dims), tensor.raw_data)
        if content in kept:
            same[tensor.name] = kept[content]
        elif len(tensor.dims) == 2 and (turned := _turned(tensor)) in kept:
            transposed[tensor.name] = kept[turned]
        else:
            kept[content] = tensor.name
    _drop_initializers(model, same | transposed)
    _rename_inputs(model.graph, same)
    for name, original in reversed(transposed.items()):
        node = helper.make_node("Transpose", [original], [name], name=f"{name}_shared", perm=[1, 0])
        model.graph.node.insert(0, node)
    return same | transposed


def _digest(kind: int, dims: tuple[int, ...], content: bytes) -> str:
    return hashlib.sha256(repr((kind, dims)).encode() + content).hexdigest()


def _turned(tensor: Any) -> str:
    """The digest that the transpose of a matrix has."""
    rows, columns = tensor.dims
    item = len(tensor.raw_data) // (rows * columns)
    turned = np.frombuffer(tensor.raw_data, np.dtype((np.void, item))).reshape(rows, columns).T
    return _digest(tensor.data_type, (columns, rows), np.ascontiguousarray(turned).tobytes())


def _drop_initializers(model: Any, dropped: Mapping[str, str]) -> None:
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name in dropped:
            del model.graph.initializer[index]


def _rename_inputs(graph: Any, names: Mapping[str, str]) -> None:
    """Have nodes, those of inner graphs too, read what stands for a dropped initializer."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename_inputs(inner, names)
