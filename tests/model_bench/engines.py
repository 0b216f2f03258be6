"""A runtime that opens engines, without TensorRT: its engines are JSON that says what they take and how they behave."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.model_bench.models import BATCH_SEQ, save, value

USUAL: dict[str, Any] = {
    "inputs": [["x", "fp32", ["x_dim0", "x_dim1"]]], "outputs": [["y", "fp32", ["y_dim0", "y_dim1"]]],
    "profiles": [{"x": [[1, 1], [2, 8], [4, 16]]}, {"x": [[1, 17], [1, 32], [1, 64]]}], "mood": "",
}  # fmt: skip
RUNTIMES = {"fake-trt": "fake_trt:FakeTrt"}
SOURCE = """
import json, os, signal
from contextlib import contextmanager
import numpy as np
from attnbench.engine_facts import EngineFacts
from attnbench.errors import InputError, NotRunError, UnavailableError, UnsupportedError
from attnbench.interfaces import SUPPORTED, Facts, Probe
from attnbench.model_problem import TensorSpec


def told_by(path):
    try:
        return json.loads(path.read_bytes())
    except ValueError as err:
        raise InputError(f"{str(path)!r} is no engine: it begins with {path.read_bytes()[:4]!r}") from err


class Session:
    def __init__(self, told, facts):
        self.told, self.facts_of, self.found = told, facts, None

    def bind(self, inputs):
        x = inputs["x"].copy()
        if self.facts_of.profile_for({"x": x.shape}) is None:
            raise UnsupportedError(self.facts_of.why_outside({"x": x.shape}))
        self.found = None
        by = np.float32(2.01 if self.told["mood"] == "coarse" else 2.0)

        def call():
            self.found = x * by

        return call

    def outputs_by_name(self):
        if self.found is None:
            raise NotRunError("call first")
        return {"y": self.found[:1] if self.told["mood"] == "lies" else self.found.copy()}

    def facts(self):
        return Facts(runtime_version="9", device="cpu", device_name="fake", threads=None, compute_precision="unknown")


class FakeTrt:
    name = "fake-trt"
    takes_artifact = True
    opens_engines = True
    opt_in = True
    preload = ()

    def probe(self):
        if os.environ.get("FAKE_TRT_AWAY"):
            return Probe(available=False, reason="there is no NVIDIA driver")
        return Probe(available=True, version="9")

    def supports(self, problem, artifact):
        return SUPPORTED

    def load(self, problem, artifact, settings):
        raise AssertionError("attention is never asked here")

    def read_engine(self, path, device):
        told = told_by(path)
        if told["mood"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if told["mood"] == "away":
            raise UnavailableError(f"{str(path)!r} opens on {device} only: there is no NVIDIA driver")
        if told["mood"] == "old":
            raise UnsupportedError(f"fake-trt does not open {str(path)!r}: Version tag does not match")
        specs = {key: tuple(TensorSpec(name=n, dtype=d, dims=tuple(dims)) for n, d, dims in told[key])
                 for key in ("inputs", "outputs")}
        return EngineFacts.from_dict({"version": "9.9", "profiles": told["profiles"], "inputs": [s.as_dict() for s in
                                     specs["inputs"]], "outputs": [s.as_dict() for s in specs["outputs"]]})

    @contextmanager
    def load_model(self, problem, artifact, settings):
        yield Session(told_by(artifact.path), self.read_engine(artifact.path, "cuda:0"))
"""


def save_engine(path: Path, **changed: Any) -> Path:
    """An engine of the fake runtime that gives y = 2 x for x (batch, seq)."""
    path.write_text(json.dumps({**USUAL, **changed}), encoding="utf-8")
    return path


def save_twice(path: Path) -> Path:
    """The ONNX file that it was compiled from."""
    nodes = [helper.make_node("Mul", ["x", "two"], ["y"])]
    x, y = (value(name, TensorProto.FLOAT, BATCH_SEQ) for name in "xy")
    return save(path, nodes, [x], [y], {"two": np.array(2.0, np.float32)})
