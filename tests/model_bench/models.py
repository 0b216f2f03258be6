"""Small ONNX files and modules of a user, for the tests of a bench of models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

BATCH_SEQ = ("batch", "seq")


def value(name: str, kind: int, dims: Sequence[str | int | None]) -> Any:
    """An input or output of a file."""
    return helper.make_tensor_value_info(name, kind, list(dims))


def save(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any],
    weights: Mapping[str, NDArray[Any]],
) -> Path:  # fmt: skip
    """A checked file."""
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def save_two(path: Path) -> Path:
    """int64 ids and a float mask in, `y` and the integer `best` out; batch and seq are free."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Unsqueeze", ["mask", "two"], ["wide"]),
        helper.make_node("Mul", ["e", "wide"], ["masked"]),
        helper.make_node("MatMul", ["masked", "w"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=-1, keepdims=0),
    ]
    return save(
        path, nodes,
        [value("ids", TensorProto.INT64, BATCH_SEQ), value("mask", TensorProto.FLOAT, BATCH_SEQ)],
        [value("y", TensorProto.FLOAT, (*BATCH_SEQ, 16)), value("best", TensorProto.INT64, BATCH_SEQ)],
        {
            "table": rng.standard_normal((50, 32)).astype(np.float32), "two": np.array([2]),
            "w": rng.standard_normal((32, 16)).astype(np.float32),
        },
    )  # fmt: skip


def save_fixed(path: Path, *, kind: int = TensorProto.FLOAT, scale: float = 2.0) -> Path:
    """x (2, 24) times a number, all sizes fixed."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [helper.make_node("Mul", ["x", "by"], ["y"])]
    return save(
        path, nodes, [value("x", kind, (2, 24))], [value("y", kind, (2, 24))], {"by": np.array(scale).astype(dtype)}
    )


def save_roots(path: Path) -> Path:
    """The square root of x (n, 8): NaN where x is below 0."""
    nodes = [helper.make_node("Sqrt", ["x"], ["y"])]
    return save(path, nodes, [value("x", TensorProto.FLOAT, (None, 8))], [value("y", TensorProto.FLOAT, (None, 8))], {})


def save_step(path: Path) -> Path:
    """A decode step: x (1, new, 8) attends to past (1, past, 8) and to itself; `present` is both."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("Transpose", ["present"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present"], ["y"]),
    ]
    floats = TensorProto.FLOAT
    return save(
        path, nodes, [value("x", floats, (1, "new", 8)), value("past", floats, (1, "past", 8))],
        [value("y", floats, (1, "new", 8)), value("present", floats, (1, "all", 8))], {},
    )  # fmt: skip


def save_first_row(path: Path) -> Path:
    """The first row of x (n, 1024): a call takes microseconds, copying x milliseconds."""
    nodes = [helper.make_node("Gather", ["x", "zero"], ["y"], axis=0)]
    return save(
        path, nodes, [value("x", TensorProto.FLOAT, ("n", 1024))], [value("y", TensorProto.FLOAT, (1024,))],
        {"zero": np.array(0)},
    )  # fmt: skip


def save_attention(path: Path, *, embed_dim: int = 64, num_heads: int = 2, kind: int = TensorProto.FLOAT16) -> Path:
    """Self-attention of x (batch, seq, embed_dim); batch and seq are free."""
    rng, dtype = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(kind)
    nodes = []
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            helper.make_node("MatMul", ["x", f"w_{name}"], [f"{name}_flat"]),
            helper.make_node("Reshape", [f"{name}_flat", "heads"], [f"{name}_heads"]),
            helper.make_node("Transpose", [f"{name}_heads"], [name], perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["scores"]), helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["o"]),
        helper.make_node("Transpose", ["o"], ["o_heads"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["o_heads", "flat"], ["y"]),
    ]  # fmt: skip
    head_dim = embed_dim // num_heads
    weights = {
        f"w_{name}": rng.normal(0, embed_dim**-0.5, (embed_dim, embed_dim)).astype(dtype) for name in "qkv"
    }  # fmt: skip
    weights |= {"heads": np.array([0, 0, num_heads, head_dim]), "flat": np.array([0, 0, embed_dim])}
    dims = ("batch", "seq", embed_dim)
    return save(
        path, nodes, [value("x", kind, dims)], [value("y", kind, dims)],
        {**weights, "scale": np.array(head_dim**-0.5, dtype)},
    )  # fmt: skip


MODULE = """
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(100, 32), nn.Linear(32, 32)

    def forward(self, ids, gate):
        y = torch.softmax(self.mix(self.embed(ids)), -1) * gate[..., None]
        return {"y": y, "best": y.argmax(-1)}
"""
INPUTS = """
outputs = ["y", "best"]
[inputs.ids]
dtype = "int64"
dims = ["batch", "seq"]
from = 0
to = 99
[inputs.gate]
dtype = "fp32"
dims = ["batch", "seq"]
[ranges.seq]
max = 1000000
[ranges.batch]
max = 3
"""


def save_module(folder: Path, name: str) -> Path:
    """A module `NAME:Head` and its inputs.toml, whose path is given back."""
    (folder / f"{name}.py").write_text(MODULE, encoding="utf-8")
    path = folder / "inputs.toml"
    path.write_text(INPUTS, encoding="utf-8")
    return path


# A runtime that gives a file's outputs by ONNX Runtime and then falsifies what `hook` says.
LIARS = """
import os, signal
from contextlib import contextmanager
import numpy as np
from attnbench.errors import NotRunError
from attnbench.interfaces import Facts, Probe, SUPPORTED


class Session:
    def __init__(self, path, hook):
        import onnxruntime as ort
        self.ort, self.hook, self.found = ort.InferenceSession(str(path)), hook, None

    def bind(self, inputs):
        inputs = {name: array.copy() for name, array in inputs.items()}
        self.found = None

        def call():
            names = [value.name for value in self.ort.get_outputs()]
            self.found = self.hook(dict(zip(names, self.ort.run(None, inputs))))

        return call

    def outputs_by_name(self):
        if self.found is None:
            raise NotRunError("call first")
        return {name: array.copy() for name, array in self.found.items()}

    def facts(self):
        return Facts(runtime_version="1", device="cpu", device_name="fake", threads=1, compute_precision="unknown")


class Old:
    name = "old"
    takes_artifact = True
    opt_in = False
    preload = ()

    def probe(self):
        return Probe(available=True, version="1")

    def supports(self, problem, artifact):
        return SUPPORTED

    def load(self, problem, artifact, settings):
        raise AssertionError("attention is never asked here")


class Honest(Old):
    name = "honest"

    @contextmanager
    def load_model(self, problem, artifact, settings):
        yield Session(artifact.path, self.hook)

    def hook(self, found):
        return found


class WrongInteger(Honest):
    name = "wrong-integer"
    def hook(self, found):
        found["best"].flat[0] += 1
        return found


class WrongFloat(Honest):
    name = "wrong-float"
    def hook(self, found):
        found["y"] = (found["y"] * 1.001).astype(found["y"].dtype)
        return found


class Moody(Honest):
    # right in its first call in a process, then something else: the judge's worker is not the one that is checked
    name = "moody"
    def hook(self, found):
        found["y"] = found["y"] * (1.0 + os.getpid() % 7919)
        return {name: array.astype("float32") if name == "y" else array for name, array in found.items()}


class Tired(Honest):
    # right in the first calls of a process, that of the check among them
    name = "tired"
    calls = 0
    def hook(self, found):
        self.calls += 1
        return found if self.calls < 3 else {**found, "y": (found["y"] * 1.01).astype("float32")}


class InBind(Honest):
    # does the work while inputs are bound, and gives nothing out until it is called
    name = "in-bind"
    @contextmanager
    def load_model(self, problem, artifact, settings):
        class Ahead(Session):
            def bind(self, inputs):
                super().bind(inputs)()
                kept, self.found = self.found, None
                def call():
                    self.found = kept
                return call

        yield Ahead(artifact.path, self.hook)


class WrongDtype(Honest):
    name = "wrong-dtype"
    def hook(self, found):
        return {**found, "best": found["best"].astype("int32")}


class Killed(Honest):
    name = "killed"
    def hook(self, found):
        os.kill(os.getpid(), signal.SIGKILL)
"""
RUNTIMES = {"honest": "liars:Honest", "wrong-integer": "liars:WrongInteger", "wrong-float": "liars:WrongFloat",
            "wrong-dtype": "liars:WrongDtype", "moody": "liars:Moody", "tired": "liars:Tired",
            "in-bind": "liars:InBind", "killed": "liars:Killed", "old": "liars:Old"}  # fmt: skip
