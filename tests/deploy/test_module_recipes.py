"""--recipe auto of a module: its files are judged by it and timed at the ends of its ranges."""

from pathlib import Path

import pytest

from attnbench.deploy import write
from attnbench.deploy.manifest import Recipe
from attnbench.deploy.module_inputs import read_inputs
from attnbench.deploy.recipes import PLAIN
from attnbench.deploy.targets import find_target
from attnbench.deploy.user_module import ModuleSource
from attnbench.errors import InputError
from attnbench.model_bench import recipes

CODE = """
import torch

class Attends(torch.nn.Module):
    def forward(self, x):
        q = x.unflatten(-1, (2, 8)).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return y.transpose(1, 2).flatten(2)
"""
TOML = '[inputs.x]\ndtype = "fp32"\ndims = ["batch", "T", 16]\n[ranges.T]\nmax = 40\n[ranges.batch]\nmax = 2\n'


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timed_blocks.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "in.toml").write_text(TOML, encoding="utf-8")
    return tmp_path / "in.toml"


def test_sizes_are_the_ends_and_the_example_and_equal_ones_are_timed_once(inputs: Path) -> None:
    found = recipes.sizes_of(read_inputs(inputs))
    assert list(found) == ["least", "example", "most"]
    assert found["least"] == {"T": 1, "batch": 1}
    assert found["most"] == {"T": 40, "batch": 2}
    fixed = TOML.replace("max = 40", "min = 9\nmax = 9").replace("max = 2", "min = 2\nmax = 2")
    inputs.write_text(fixed, encoding="utf-8")
    assert recipes.sizes_of(read_inputs(inputs)) == {"least": {"T": 9, "batch": 2}}


def test_only_auto_times_a_module(inputs: Path) -> None:
    source, target = ModuleSource("timed_blocks:Attends", inputs), find_target("onnxruntime-cpu")
    timed = [Recipe(exporter="onnx-attention", opset=None, chosen_by="measured", reason="the fastest")]
    assert write.recipes_to_try(source, target, "auto", print, lambda: timed) == timed
    documented = write.recipes_to_try(source, target, "documented", print, lambda: pytest.fail("it was timed"))
    assert [recipe.exporter for recipe in documented] == list(target.recipes)
    asked = write.recipes_to_try(source, target, PLAIN, print, lambda: pytest.fail("it was timed"))
    assert [recipe.exporter for recipe in asked] == [PLAIN]


def test_without_the_target_here_nothing_of_the_module_is_run(inputs: Path) -> None:
    found = recipes.choose_recipe("no_such_module:Attends", inputs, find_target("tensorrt"))
    assert {recipe.chosen_by for recipe in found} == {"documented"}


def test_a_module_that_cannot_be_run_is_an_error_with_its_name(inputs: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="no_such_module"):
        recipes.choose_recipe("no_such_module:Attends", inputs, find_target("onnxruntime-cpu"))


@pytest.mark.slow
def test_every_recipe_of_a_module_is_judged_and_timed_or_says_why_not(inputs: Path) -> None:
    pytest.importorskip("onnxruntime")
    lines: list[str] = []
    target = find_target("onnxruntime-cpu")
    found = recipes.choose_recipe("timed_blocks:Attends", inputs, target, timing_s=0.01, say=lines.append)
    assert {recipe.exporter for recipe in found} == {PLAIN, "onnx-attention", "onnx-blocked"}
    assert {recipe.chosen_by for recipe in found} == {"measured"}
    candidates = {candidate["name"]: candidate for candidate in found[0].candidates}
    assert candidates["onnx-contrib"]["status"] == "unsupported"
    assert candidates[PLAIN]["ratio_by_size"] == {"least": 1.0, "example": 1.0, "most": 1.0}
    assert candidates[found[0].exporter]["peak_host_bytes"] > 0
    assert lines[0].startswith("timing 4 recipes at batch=1, T=1; batch=2, T=11; batch=2, T=40: large sizes take ")
    assert lines[1].split()[:4] == ["recipe", "least", "example", "most"]
