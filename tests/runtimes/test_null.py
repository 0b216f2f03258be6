"""The null runtime measures the harness: it does nothing and says so."""

import numpy as np

from attnbench.inputs import make_inputs
from attnbench.interfaces import Settings
from attnbench.problem import Problem
from attnbench_runtimes.null import Null


def test_null_gives_zeros_of_the_outputs_shape_and_dtype() -> None:
    problem = Problem.make(part="core", variant="cross", seq_len=6, num_heads=2, head_dim=4, dtype="fp16")
    with Null().load(problem, None, Settings()) as session:
        session.bind(make_inputs(problem))()
        output = session.outputs()
    np.testing.assert_array_equal(output, np.zeros((1, 2, 6, 4), np.float16))
    assert output.dtype == np.float16


def test_null_claims_no_threads_no_precision_and_no_kernel() -> None:
    with Null().load(Problem.make(seq_len=8), None, Settings(threads=3)) as session:
        facts = session.facts()
    assert (facts.threads, facts.compute_precision, facts.attention_kernel) == (None, "unknown", "unknown")


def test_null_runs_only_when_named() -> None:
    assert Null().opt_in
    assert not Null().takes_artifact
