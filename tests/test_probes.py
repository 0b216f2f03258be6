"""Probes: what they ask, with answers by hand, and how a wrong answer is named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnbench import probes
from attnbench.errors import ProblemError
from attnbench.hypotheses import Pieces, take_apart, visible
from attnbench.inputs import make_weights
from attnbench.interfaces import numpy_dtype
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep.probing import judge, judge_arrays, run_probe

ALL = {probe.name: probe for probe in probes.all_probes()}


def answer(name: str) -> Any:
    """The oracle's answer to a probe."""
    probe = ALL[name]
    inputs = probes.make_probe_inputs(probe.problem, probe.fill, seed=0)
    return reference_output(probe.problem, inputs, make_weights(probe.problem, seed=0))


def verdict(name: str, change: Callable[[Problem, Pieces], Any]) -> dict[str, Any]:
    """What is said of an output that some fault gives."""
    probe = ALL[name]
    inputs = probes.make_probe_inputs(probe.problem, probe.fill, seed=0)
    pieces = take_apart(probe.problem, inputs, make_weights(probe.problem, seed=0))
    output = np.asarray(change(probe.problem, pieces)).astype(numpy_dtype(probe.problem.dtype))
    return judge(probe.problem, probe.fill, inputs, output, seed=0)


def test_names_of_probes_are_unique() -> None:
    assert len(ALL) == len(probes.all_probes())


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("uniform 3x7", [3, 3, 3]),
        ("causal top-left 3x7", [0, 0.5, 1]),
        ("causal top-left 1x5", [0]),
        ("causal top-left 7x3", [0, 0.5, 1, 1, 1, 1, 1]),
        ("causal top-left 4x4", [0, 0.5, 1, 1.5]),
        ("causal bottom-right 3x7", [2, 2.5, 3]),
        ("causal bottom-right 1x5", [2]),
        ("causal bottom-right 7x3", [0, 0, 0, 0, 0, 0.5, 1]),
        ("sliding window 2", [0, 0.5, 1.5, 2.5, 3.5, 4.5]),
        ("sliding window 2 3x7", [0, 0.5, 1.5]),
    ],
)
def test_uniform_scores_give_the_mean_of_the_indices_seen(name: str, means: list[float]) -> None:
    expected = np.broadcast_to(np.array(means)[:, None], answer(name).shape)
    np.testing.assert_allclose(answer(name), expected, atol=1e-12)


def test_weights_in_proportion_to_the_index_give_forty_fifteenths() -> None:
    np.testing.assert_allclose(answer("bias_1hqk uniform"), 40 / 15, atol=1e-6)  # sum j (j + 1) / sum (j + 1), j < 5


def test_heads_marked_by_value_show_one_one_two_two() -> None:
    np.testing.assert_allclose(answer("grouped heads 4/2 by value")[0, :, 0, 0], [1, 1, 2, 2])


@pytest.mark.parametrize("name", ["fp16 2048 keys", "fp16 70000 keys"])
def test_very_many_keys_give_a_half_in_every_channel(name: str) -> None:
    np.testing.assert_allclose(answer(name), 0.5, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith("poison") and not name.startswith("block")])
def test_poison_at_masked_keys_leaves_exactly_one(name: str) -> None:
    sees = 1 if ALL[name].problem.masking.position else 0  # the last query may see the last key
    rows = answer(name)[..., : answer(name).shape[-2] - sees, :]
    np.testing.assert_allclose(rows, 1.0, atol=1e-12)


@pytest.mark.parametrize("name", ["key_padding no key for a sample", "bool_b1qk no key for a sample"])
def test_a_sample_without_a_key_is_zero(name: str) -> None:
    assert not answer(name)[-1].any()
    assert answer(name)[0].any()


@pytest.mark.parametrize("mask", ["bool_b1qk", "bool_1hqk", "bool_qk"])
def test_a_query_without_a_key_is_zero(mask: str) -> None:
    found = answer(f"{mask} no key for a row")
    assert not found[:, :, 0].any()
    assert found[:, :, 1:].any()


def test_a_block_sample_without_a_key_gives_the_output_bias() -> None:
    bias = make_weights(ALL["block key_padding no key"].problem, seed=0)["b_o"]
    np.testing.assert_allclose(answer("block key_padding no key")[-1], np.broadcast_to(bias, (5, 32)), atol=1e-6)


@pytest.mark.parametrize("name", ["key_padding uniform", "bool_b1qk uniform"])
def test_boolean_masks_differ_between_samples_and_are_not_shaped_like_padding(name: str) -> None:
    probe = ALL[name]
    mask = probes.make_probe_inputs(probe.problem, probe.fill, seed=0)["mask"]
    assert (mask[0] != mask[1]).any()
    rows = mask.reshape(-1, mask.shape[-1])
    assert any((np.diff(row.astype(int)) > 0).any() for row in rows)  # a key is allowed behind a masked one


@pytest.mark.parametrize("name", list(ALL))
def test_two_ways_of_computing_a_probe_agree(name: str) -> None:
    probe = ALL[name]
    inputs = probes.make_probe_inputs(probe.problem, probe.fill, seed=0)
    pieces = take_apart(probe.problem, inputs, make_weights(probe.problem, seed=0))
    expected = answer(name)
    rows = probes.judged_rows(probe.problem, probe.fill)
    chosen = slice(None) if rows is None else rows
    np.testing.assert_allclose(pieces.output()[..., chosen, :], expected[..., chosen, :], atol=1e-9)


def test_a_fill_that_does_not_fit_is_refused() -> None:
    block = Problem.make(seq_len=4)
    for fill in ("uniform", "no_key_row", "nonsense"):
        with pytest.raises(ProblemError):
            probes.make_probe_inputs(block, fill, seed=0)


FAULTS: list[tuple[str, Callable[[Problem, Pieces], Any], str]] = [
    ("bool_b1qk no key for a row", lambda p, x: replace(x, empty="mean").output(), "mean of V instead of zeros"),
    (
        "block key_padding no key",
        lambda p, x: replace(x, empty="unmasked").output(),
        "keys leak: a query without a key attends to all",
    ),
    (
        "causal top-left 3x7",
        lambda p, x: replace(x, by_position=visible(p, "causal_bottom_right")).output(),
        "bottom-right instead of top-left",
    ),
    (
        "causal bottom-right 3x7",
        lambda p, x: replace(x, by_position=visible(p, "causal_top_left")).output(),
        "top-left instead of bottom-right",
    ),
    (
        "causal top-left 4x4",
        lambda p, x: replace(x, by_position=np.ones_like(x.by_position)).output(),
        "keys leak: the position rule is ignored",
    ),
    (
        "key_padding poison",
        lambda p, x: replace(x, by_tensor=np.ones_like(x.by_tensor)).output(),
        "keys leak: the mask is ignored",
    ),
    ("key_padding poison", lambda p, x: x.output() + 3.0, "differs by no known cause"),
    ("key_padding uniform", lambda p, x: replace(x, by_tensor=~x.by_tensor).output(), "the mask is read inverted"),
    (
        "bool_b1qk uniform",
        lambda p, x: replace(x, by_tensor=np.broadcast_to(x.by_tensor[:1], x.by_tensor.shape)).output(),
        "the first sample's mask is used for all",
    ),
    ("grouped heads 4/2 by value", lambda p, x: replace(x, tiled=True).output(), "heads tiled instead of repeated"),
    ("normal 5x9", lambda p, x: x.output()[:, [1, 0, 2, 3]], "heads permuted: 1, 0, 2, 3"),
    ("scale 0.5 normal", lambda p, x: replace(x, scale=8**-0.5).output(), "scale ignored: 1/sqrt(d) is used"),
    ("block self 5", lambda p, x: replace(x, scale=1.0).output(), "scale ignored: 1 is used"),
    ("block self 5", lambda p, x: x.output().swapaxes(1, 2).reshape(2, 5, 32), "transposed"),
    ("block self 5", lambda p, x: x.output().swapaxes(1, 2),
     "output shape changed: (2, 32, 5) instead of (2, 5, 32) (transposed)"),
    ("block self 5", lambda p, x: x.output() * 1.05, "differs by no known cause"),
    ("block self 5", lambda p, x: x.output() * 1.001,
     "differs by no known cause; its error is as large as that of tf32"),
    ("fp16 normal", lambda p, x: x.output() * 1.01, "differs by no known cause"),
    ("block causal poison", lambda p, x: x.output() * 1.05, "differs by no known cause"),
    ("alibi normal", lambda p, x: x.output() * 1.05, "differs by no known cause"),
    ("alibi normal", lambda p, x: replace(x, added=-x.added).output(), "the mask is subtracted"),
    ("bias_1hqk uniform", lambda p, x: replace(x, added=2 * x.added).output(), "the mask is added twice"),
    ("alibi normal", lambda p, x: replace(x, added=p.scale * x.added).output(), "the mask is multiplied by the scale"),
    (
        "alibi normal",
        lambda p, x: replace(x, added=np.broadcast_to(x.added[:, :1], x.added.shape)).output(),
        "the first head's mask is used for all",
    ),
    ("sliding window 2", lambda p, x: replace(x, by_position=np.tri(6) - np.tri(6, k=-3) > 0).output(),
     "a window of 3 keys instead of 2"),
    ("sliding window 2", lambda p, x: replace(x, by_position=np.eye(6) > 0).output(),
     "a window of 1 keys instead of 2"),
    ("sliding window 2", lambda p, x: replace(x, by_position=np.tri(6) > 0).output(), "the window is ignored"),
    ("sliding window 2", lambda p, x: replace(x, by_position=np.tri(6, k=1) - np.tri(6, k=-2) > 0).output(),
     "keys leak: a query sees the key behind its last"),
    ("sliding window 2 3x7", lambda p, x: replace(x, by_position=np.tri(3, 7, k=4) - np.tri(3, 7, k=2) > 0).output(),
     "bottom-right instead of top-left"),
    ("bool_1hqk 5x5", lambda p, x: replace(x, by_tensor=x.by_tensor.swapaxes(-1, -2)).output(),
     "queries and keys of the mask are mixed up"),
    ("causal top-left 4x4", lambda p, x: replace(x, by_position=np.tri(4, k=1) > 0).output(),
     "keys leak: a query sees the key behind its last"),
    ("causal top-left 4x4", lambda p, x: replace(x, by_position=np.tri(4, k=-1) > 0).output(),
     "a query misses its last key"),
    ("block decode 3 of 9", lambda p, x: np.repeat(x.output()[:1], 2, 0), "the first sample's answer is given for all"),
    ("normal 5x9", lambda p, x: replace(x, by_position=np.arange(9) < np.full((5, 1), 8)).output(),
     "the last key is dropped"),
    ("block self bias", lambda p, x: replace(x, b_o=None).output(), "the bias of the output projection is missing"),
    ("grouped heads 4/2 normal", lambda p, x: x.output()[:, [0, 2, 1, 3]], "heads permuted: 0, 2, 1, 3"),
    ("fp16 70000 keys", lambda p, x: x.output() * 0, "zeros instead of values"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "how"), FAULTS, ids=[f"{name}: {how}" for name, _, how in FAULTS])
def test_a_known_fault_is_named(name: str, change: Callable[[Problem, Pieces], Any], how: str) -> None:
    found = verdict(name, change)
    assert (found["ok"], found["how"]) == (False, how)


class LeakySession:
    """Right but for a part of the key that nobody may see."""

    def __init__(self, problem: Problem, leak: float) -> None:
        self.problem, self.leak, self.out = problem, leak, np.empty(0)

    def bind(self, inputs: dict[str, Any]) -> Callable[[], None]:
        def call() -> None:
            hidden = inputs["v"][..., [probes.poison_key(self.problem)], :]
            self.out = (reference_output(self.problem, inputs, {}) * 1.05 + self.leak * hidden).astype(np.float32)

        return call

    def outputs(self) -> Any:
        return self.out


@pytest.mark.parametrize("name", ["key_padding poison", "causal top-left poison"])
@pytest.mark.parametrize(
    ("leak", "how"), [(0.0, "differs by no known cause"), (1e-3, "keys leak: values of masked keys show")]
)
def test_a_leak_is_named_only_where_a_masked_key_alters_the_answer(name: str, leak: float, how: str) -> None:
    problem = ALL[name].problem
    session: Any = LeakySession(problem, leak)
    assert run_probe(session, problem, "poison", seed=0)["how"] == how


def test_nan_in_queries_without_a_key_is_counted() -> None:
    def change(problem: Problem, pieces: Pieces) -> Any:
        output = pieces.output()
        output[:, :, 0] = np.nan
        return output

    found = verdict("bool_b1qk no key for a row", change)
    assert found["how"] == "NaN x 64 of 256 in queries without a key"  # 2 samples x 4 heads x 8 channels
    assert found["error"] is None


def test_another_dtype_is_named_though_the_values_are_right() -> None:
    probe = ALL["fp16 normal"]
    inputs = probes.make_probe_inputs(probe.problem, probe.fill, seed=0)
    found = judge(probe.problem, probe.fill, inputs, answer("fp16 normal").astype(np.float32), seed=0)
    assert found["how"] == "output dtype changed: float32 instead of float16"


def test_a_right_answer_conforms_with_its_numbers() -> None:
    found = verdict("causal top-left 3x7", lambda p, x: x.output())
    assert found == {
        "ok": True, "how": "", "error": 0.0, "limit": 5e-5, "expected": "0 0 0 0 ...", "got": "0 0 0 0 ...",
    }  # fmt: skip


def test_files_are_judged_by_their_largest_value_and_by_infinities() -> None:
    due = np.array([[1.0, -4.0]], np.float32)
    assert judge_arrays([("y", due + np.float32(1e-4), due)])["ok"]
    assert judge_arrays([("y", due + np.float32(0.4), due)])["how"] == "y: off by 0.1 of the largest value"
    low = np.array([[1.0, -np.inf]], np.float32)
    assert judge_arrays([("y", due, low)])["how"] == "y: infinity x 0 of 2, 1 expected"
    assert judge_arrays([("y", due.astype(np.float16), due)])["how"].endswith(
        "output dtype changed: float16 instead of float32"
    )


def test_the_numbers_of_a_file_are_where_it_differs_most() -> None:
    due = np.array([[-np.inf, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, -np.inf]], np.float32)
    out = np.array([[-np.inf, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7]], np.float32)
    found = judge_arrays([("y", out, due)])
    assert (found["expected"], found["got"]) == ("... -inf", "... 7")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, []),
        ({"variant": "causal"}, ["poison"]),
        ({"mask": "key_padding"}, ["poison", "no_key_sample"]),
        ({"mask": "bool_b1qk"}, ["poison", "no_key_row", "no_key_sample"]),
        ({"part": "core", "mask": "bool_qk"}, ["poison", "no_key_row", "uniform"]),
        ({"part": "core", "num_kv_heads": 2}, ["heads"]),
        (
            {"part": "core", "variant": "causal", "mask": "causal_bottom_right"},
            ["poison", "uniform", "more queries than keys"],
        ),
        ({"variant": "decode", "q_len": 2}, []),
    ],
)  # fmt: skip
def test_only_what_a_problem_uses_is_probed(fields: dict[str, Any], names: list[str]) -> None:
    problem = Problem.make(seq_len=16, num_heads=4, head_dim=8, **fields)
    assert [probe.name for probe in probes.feature_probes(problem)] == names
    assert all(probe.problem.static_key() == problem.static_key() for probe in probes.feature_probes(problem))
