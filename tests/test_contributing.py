import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnbench import plugins
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Settings
from attnbench.probes import all_probes
from attnbench.problem import Part, Problem, Variant
from attnbench.reference import reference_output
from attnbench.sweep.probing import run_probe

ROOT = Path(__file__).parents[1]


def example_files() -> dict[str, str]:
    """The fenced blocks of CONTRIBUTING.md that follow a line which names a file."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"^`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture
def example(install_plugin: Callable[..., Path]) -> Path:
    """The example, installed; gives its folder."""
    files = example_files()
    project = tomllib.loads(files["pyproject.toml"])["project"]
    points = project["entry-points"]["attnbench.runtimes"]
    modules = {Path(name).stem: source for name, source in files.items() if name.endswith(".py")}
    return install_plugin(project["name"], runtimes=points, modules=modules)


def test_the_example_is_a_whole_project() -> None:
    assert set(example_files()) == {"attnbench_numpy.py", "pyproject.toml", "test_numpy.py"}


def test_the_example_is_found_and_available(example: Path) -> None:
    assert plugins.runtimes()["numpy-fp32"].distribution == "attnbench-numpy"
    answer = plugins.probe("runtime", "numpy-fp32")
    assert (answer.available, answer.version) == (True, np.__version__)


@pytest.mark.parametrize("part", ["block", "core"])
@pytest.mark.parametrize("variant", ["self", "cross", "causal"])
def test_the_example_computes_attention(example: Path, part: Part, variant: Variant) -> None:
    problem = Problem.make(part=part, variant=variant, seq_len=24, batch_size=2, num_heads=2, head_dim=8)
    inputs = make_inputs(problem, seed=3)
    with plugins.load_runtime("numpy-fp32").load(problem, None, Settings(threads=1, seed=5)) as session:
        session.bind(inputs)()
        result = session.outputs()
        assert session.facts().threads == 1
    expected = reference_output(problem, inputs, make_weights(problem, seed=5))
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-5)


def test_the_example_is_right_in_every_probe_that_it_does_not_refuse(example: Path) -> None:
    runtime = plugins.load_runtime("numpy-fp32")
    found = {}
    for probe in all_probes():
        if runtime.supports(probe.problem, None).ok:
            with runtime.load(probe.problem, None, Settings()) as session:
                found[probe.name] = run_probe(session, probe.problem, probe.fill, seed=0)["how"]
    assert {"uniform 3x7", "causal top-left 3x7", "block self 5", "block cross 5x9", "block causal 10"} <= set(found)
    assert set(found.values()) == {""}


def test_the_example_passes_its_own_conformance_test(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-E", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", example, example],
        capture_output=True, text=True, timeout=300, check=False, cwd=example,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
