"""Small bundles for the tests: a model that multiplies its input by a table, and what is done to bundles."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from attnbench.deploy import manifest, verify_bundle
from attnbench.deploy.manifest import GOLDEN, Golden, Tensor
from attnbench.errors import ArtifactError
from attnbench.sweep.repro import as_npz


class Scaled:
    """A source whose model gives x times `table`; the model may be built with another factor than its cases."""

    problem = None
    module = "tests:Scaled"
    seed = 0
    opset = None

    def __init__(self, factor=2.0, *, model_factor=None, data_bytes=None, files=("least",), operator="Mul"):
        self.factor, self.model_factor, self.operator = factor, model_factor or factor, operator
        self.data_bytes, self.names = data_bytes, files

    def refuse(self):
        """Nothing is wrong with it."""

    def tensors(self):
        """One each."""
        return tuple((Tensor(name=name, dtype="fp32", dims=("n", 4096)),) for name in ("x", "y"))

    def write_golden(self, shop, folder):
        """A case for every name, of n = 2."""
        (folder / GOLDEN).mkdir()
        x = np.random.default_rng(0).standard_normal((2, 4096), dtype=np.float32)
        found = []
        for name in self.names:
            arrays = {"in_x": x, "out_y": x.astype(np.float64) * self.factor}
            (folder / GOLDEN / f"{name}.npz").write_bytes(as_npz(arrays))
            found.append(Golden(file=f"{GOLDEN}/{name}.npz", sizes={"n": 2}, limits={"y": 1e-6}, reason="two roundings",
                                reference="NumPy"))  # fmt: skip
        return tuple(found)

    def write_model(self, shop, target, exporter, folder):
        """Opset 20; data beside it where `data_bytes` says so."""
        from onnx import TensorProto, helper, numpy_helper, save

        from attnbench.deploy.models import settle_onnx

        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4096]) for name in ("x", "y")]
        table = numpy_helper.from_array(np.full(4096, self.model_factor, np.float32), "table")
        graph = helper.make_graph(
            [helper.make_node(self.operator, ["x", "table"], ["y"])], "g", values[:1], values[1:], [table]
        )
        source = folder.parent / "made.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), source)
        settled = settle_onnx(source=str(source), folder=str(folder), external_bytes=self.data_bytes or 1 << 30)
        return settled["model"], settled["opset"]

    def check(self, shop, plan, opset, folder):
        """Nothing more is looked at."""
        return ()

    def wrong(self, sentence, faults):
        """In the sentence's own words."""
        return ArtifactError(sentence)

    def sentence(self):
        """What it does."""
        return "x times a table."

    def notes(self):
        """None."""
        return []


def run_verify(folder, *arguments, python=sys.executable, variables=None):
    """verify.py by itself, in a folder that is not the bundle's, without this package's path."""
    return subprocess.run(
        [python, str(folder / "verify.py"), *arguments], cwd="/", capture_output=True, text=True, check=False,
        timeout=120, env={"PATH": os.environ["PATH"], **(variables or {})},
    )  # fmt: skip


def verify_here(folder, **options):
    """Exit code and what was told, in this process."""
    told = []
    return verify_bundle.verify(folder, options, told.append), "\n".join(told)


def update_hash(folder, name):
    """Have bundle.json say what the file is now, as somebody would who wants to be believed."""
    path = folder / manifest.MANIFEST
    fields = json.loads(path.read_bytes())
    fields["files"][name] = manifest.describe(folder / name).model_dump()
    path.write_text(json.dumps(fields), encoding="utf-8")


def edit(folder, change):
    """Change what bundle.json says, with its digest."""
    path = folder / manifest.MANIFEST
    fields = json.loads(path.read_bytes())
    change(fields)
    path.write_text(json.dumps({**fields, "digest": verify_bundle.digest(fields)}), encoding="utf-8")


def names_in(folder: Path):
    """Every file by its name in the folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
