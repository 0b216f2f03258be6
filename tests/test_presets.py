"""Shapes of published models by name, in sweeps and in exported files."""

from pathlib import Path

import numpy as np
import pytest

from attnbench import api
from attnbench.cli import main
from attnbench.errors import InputError
from attnbench.inputs import make_inputs, make_weights
from attnbench.presets import PRESETS, find
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep import grid


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_problem_whose_embedding_is_the_models(name: str) -> None:
    preset = PRESETS[name]
    for variant in preset.variants:
        problem = Problem.make(seq_len=preset.length, **preset.problem_keys(variant))
        assert problem.embed_dim == preset.embed_dim
    assert "arXiv" in preset.source


def test_the_shapes_are_those_of_the_papers() -> None:
    shapes = {p.name: (p.embed_dim, p.num_heads, p.num_kv_heads, p.head_dim, p.layers) for p in PRESETS.values()}
    assert shapes == {
        "gpt3": (12288, 96, 96, 128, 96), "llama3-8b": (4096, 32, 8, 128, 32), "whisper-base": (512, 8, 8, 64, 6),
        "vit-b16": (768, 12, 12, 64, 12), "t5-base": (768, 12, 12, 64, 12),
    }  # fmt: skip


def test_a_preset_sets_the_keys_of_a_sweep_and_flags_override_it() -> None:
    sweep = grid.resolve("quick", {"preset": "llama3-8b"})
    assert (sweep.num_heads, sweep.num_kv_heads, sweep.head_dims, sweep.variants) == ((32,), (8,), (128,), ("causal",))
    assert sweep.seq_lens == (128, 512, 1024)
    sweep = grid.resolve("quick", {"preset": "llama3-8b", "variants": ("decode",), "num_kv_heads": (4,)})
    assert (sweep.num_heads, sweep.num_kv_heads, sweep.variants) == ((32,), (4,), ("decode",))


def test_a_preset_of_a_file_is_below_its_other_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('preset = "t5-base"\nseq_lens = [64]\nvariants = ["self"]\nmasks = ["bias_1hqk"]\n')
    problems = grid.problems(grid.resolve(path, {}))
    assert [(p.label(), p.num_heads, p.scale) for p in problems] == [
        ("block self T=64 fp32 bias_1hqk scale=1", 12, 1.0),
    ]  # fmt: skip
    assert grid.resolve(path, {"preset": "vit-b16", "masks": ("none",)}).num_heads == (12,)


def test_an_unknown_preset_is_refused_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"no preset 'gpt-3'; known: gpt3, .*; did you mean 'gpt3'\?"):
        find("gpt-3")
    path = tmp_path / "mine.toml"
    path.write_text("preset = 3\n")
    with pytest.raises(InputError, match="no preset '3'"):
        grid.resolve(path, {})
    assert main(["bench", "--preset", "nope", "--dry-run"]) == 2
    assert "no preset 'nope'" in capsys.readouterr().err


def test_a_preset_is_exported_with_what_a_flag_changes(tmp_path: Path) -> None:
    made = api.export(preset="t5-base", num_heads=2, num_kv_heads=2, head_dim=8, out=tmp_path / "t5.onnx")
    assert (made.problem.scale, made.problem.mask, made.problem.num_heads) == (1.0, "bias_1hqk", 2)
    assert made.verified.startswith(("ort-cpu", "openvino"))


def test_the_flags_of_export_name_every_part_of_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "export --exporter onnx-decomposed --heads 4 --head-dim 8 --num-kv-heads 2 --variant causal --bias "
    command += f"--mask causal_top_left+key_padding --scale 0.5 --v-head-dim 4 --json -o {tmp_path / 'x.onnx'}"
    assert main(command.split()) == 0
    assert '"verified": "o' in capsys.readouterr().out


def test_a_bias_on_k_alters_no_output() -> None:
    """Why whisper's missing one may be there."""
    problem = Problem.make(seq_len=6, num_heads=2, head_dim=4, bias=True)
    inputs, weights = make_inputs(problem), make_weights(problem)
    without = {**weights, "b_k": np.zeros_like(weights["b_k"])}
    assert np.abs(weights["b_k"]).max() > 0.1
    np.testing.assert_allclose(
        reference_output(problem, inputs, weights), reference_output(problem, inputs, without), rtol=0, atol=1e-14
    )


def test_the_core_of_a_model_with_biases_has_none() -> None:
    keys = PRESETS["gpt3"].problem_keys(part="core")
    assert not Problem.make(part="core", seq_len=8, **keys).bias
    assert PRESETS["gpt3"].problem_keys()["bias"]
