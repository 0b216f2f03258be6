"""Files exported once per test session."""

from collections.abc import Callable

import pytest

from attnbench.interfaces import Artifact, Exporter
from attnbench.problem import Problem
from attnbench_exporters.attention import OnnxAttention
from attnbench_exporters.blocked import OnnxBlocked
from attnbench_exporters.contrib import OnnxContrib
from attnbench_exporters.decomposed import OnnxDecomposed

Exported = Callable[[str, Problem, int | None], Artifact]
EXPORTERS: dict[str, Exporter] = {e.name: e for e in (OnnxDecomposed(), OnnxAttention(), OnnxContrib(), OnnxBlocked())}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """exported(name, problem, opset): the artifact with the weights of seed 0; None: the default opset."""
    folder = tmp_path_factory.mktemp("artifacts")
    made: dict[tuple[str, str, int], Artifact] = {}

    def get(name: str, problem: Problem, opset: int | None = None) -> Artifact:
        exporter = EXPORTERS[name]
        key = (name, problem.static_key(), opset or exporter.opsets[0])
        if key not in made:
            path = folder / f"{'-'.join(map(str, key))}.onnx"
            made[key] = exporter.export(problem, key[2], path, seed=0)
        return made[key]

    return get
