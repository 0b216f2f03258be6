"""Modules of a user, from inputs.toml to a bundle that verifies; and each way in which one cannot be shipped."""

import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from attnbench.deploy import module_tasks, prove, rtx, write
from attnbench.deploy.manifest import read_manifest
from attnbench.deploy.targets import find_target
from attnbench.deploy.user_module import ModuleSource
from attnbench.errors import AttnbenchError, ExportError, FrozenDimError, InputError, UnavailableError, UnsupportedError
from tests.conftest import Call
from tests.deploy.user_blocks import BLOCKS, IDS, MASK, OWN, PAD, SMALL, X


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where attnbench is started, with the user's code in it."""
    (tmp_path / "blocks.py").write_text(BLOCKS, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import torch\n\ndef forward(x:\n    return x\n", encoding="utf-8")
    (tmp_path / "raises.py").write_text("import torch\ntorch.nowhere()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("blocks", "broken", "raises"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def source(module: str, toml: str) -> ModuleSource:
    Path("inputs.toml").write_text(toml, encoding="utf-8")
    return ModuleSource(module, Path("inputs.toml"))


class Here:
    """Answers questions in this process, where workers would take seconds to start."""

    def ask(self, op: str, *, preload: Any, **fields: Any) -> dict[str, Any]:
        name, _, function = op.partition(":")
        answer: dict[str, Any] = json.loads(json.dumps(getattr(sys.modules[name], function)(**fields)))
        return answer


def take(module: str, toml: str) -> dict[str, Any]:
    Path("new").mkdir(exist_ok=True)
    contract = source(module, toml).inputs.model_dump_json(by_alias=True)
    return module_tasks.take(
        module=module, inputs=contract, start=str(Path.cwd()), seed=0, folder="new", program="program.pt2"
    )


def faults(module: str, toml: str, recipe: str) -> tuple[ModuleSource, list[str], dict[str, dict[str, float]]]:
    """Write a module by a recipe and run its cases in ONNX Runtime; the source, what is wrong, errors by case."""
    found = source(module, toml)
    Path("work/new").mkdir(parents=True)
    return found, *run_cases(found, recipe, Path("work/new"), "onnxruntime-cpu")


def run_cases(
    found: ModuleSource, recipe: str, folder: Path, target_name: str
) -> tuple[list[str], dict[str, dict[str, float]]]:
    """What is wrong with the model of a source, and the errors by case."""
    shop, target = Here(), find_target(target_name)
    golden = found.write_golden(shop, folder)  # type: ignore[arg-type]
    model, _ = found.write_model(shop, target, recipe, folder)  # type: ignore[arg-type]
    inputs, outputs = ([t.model_dump(mode="json") for t in tensors] for tensors in found.tensors())
    plan = {"runtime": write.runtime_of(target, found), "model": model, "inputs": inputs, "outputs": outputs,
            "golden": [case.model_dump(mode="json") for case in golden]}  # fmt: skip
    proved = prove.prove(folder=str(folder), plan=plan, problem=None, seed=0)
    return proved["faults"], proved["errors"]


def line_of(code: str) -> int:
    """Where the user's file has this line."""
    return next(n for n, line in enumerate(BLOCKS.splitlines(), 1) if line.strip() == code)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    header, blob = {}, b""
    for name, array in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(blob), len(blob) + array.nbytes],
        }
        blob += array.astype("<f4").tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def own_weights() -> dict[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(5)
    shapes = {"qkv.weight": (96, 32), "out.weight": (32, 32), "out.bias": (32,)}
    return {name: (draw.standard_normal(shape) / 6).astype(np.float32) for name, shape in shapes.items()}


def causal_attention(x: np.ndarray[Any, Any], weights: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """What Own computes, by hand in float64: x (B, T, 32), 4 heads of 8."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    heads = (x.astype(np.float64) @ w["qkv.weight"].T).reshape(*x.shape[:2], 3, 4, 8)  # (B, T, 3, H, D)
    q, k, v = heads.transpose(2, 0, 3, 1, 4)  # (B, H, T, D) each
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8.0)
    scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    weights_of = np.exp(scores - scores.max(-1, keepdims=True))
    y = (weights_of / weights_of.sum(-1, keepdims=True)) @ v
    return y.transpose(0, 2, 1, 3).reshape(x.shape) @ w["out.weight"].T + w["out.bias"]


@pytest.mark.parametrize("recipe", ["onnx-blocked", "onnx-attention", "onnx-decomposed"])
def test_each_recipe_computes_what_the_module_with_its_weights_does(recipe: str) -> None:
    weights = own_weights()
    write_safetensors(Path("own.safetensors"), weights)
    _, wrong, errors = faults("blocks:Own", f'weights = "own.safetensors"\n{OWN}{SMALL}', recipe)
    assert wrong == []
    assert len(errors) == 9
    for file in errors:
        with np.load(Path("work/new") / file) as stored:
            np.testing.assert_allclose(stored["out_y"], causal_attention(stored["in_x"], weights), rtol=0, atol=1e-13)


def test_the_command_makes_a_bundle_that_verifies_without_attnbench(run: Any, folder: Path) -> None:
    Path("inputs.toml").write_text(OWN + SMALL, encoding="utf-8")
    asked = "export --module blocks:Own --inputs inputs.toml --target onnxruntime-cpu -o bundle"
    call: Call = run(*asked.split())
    assert call[0] == 0, call
    made = read_manifest(folder / "bundle")
    assert (made.module, made.recipe.exporter) == ("blocks:Own", "onnx-blocked")
    assert made.ranges == {"batch": (1, 3), "T": (1, 40)}
    passed = {check.name for check in made.checks if check.result == "passed"}
    assert passed == {"opset", "checker", "contract", "weights", "constants", "free sizes", "golden cases"}
    script = [sys.executable, "-I", str(folder / "bundle" / "verify.py")]
    assert subprocess.run(script, cwd="/", check=False, capture_output=True).returncode == 0
    code, told, _ = run("verify", "bundle")
    assert code == 0
    assert "limits are the word of bundle.json: they were made by blocks:Own, which is not in the bundle" in told
    page = (folder / "bundle" / "README.md").read_text(encoding="utf-8")
    assert "Expected outputs and limits were made by `blocks:Own`, which is not in here" in page


def test_a_refusal_by_the_command_is_one_sentence_and_leaves_nothing(run: Any, folder: Path) -> None:
    Path("inputs.toml").write_text(X + SMALL, encoding="utf-8")
    before = sorted(path.name for path in folder.iterdir())
    asked = "export --module broken:Own --inputs inputs.toml --target torch -o bundle"
    code, out, err = run(*asked.split())
    assert (code, out) == (2, "")
    assert "broken.py, line 3: SyntaxError: '(' was never closed" in err
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--module a:B --target torch", "--module and --inputs go together, got --module alone"),
        ("--inputs a.toml --target torch", "--module and --inputs go together, got --inputs alone"),
        ("--module a:B --inputs a.toml", "--module and --inputs are for a bundle; add --target"),
        ("--module a:B --inputs a.toml --target torch --heads 8", "--num-heads is for the built-in attention"),
        ("--module a:B --inputs a.toml --target torch", "'a.toml' cannot be read: No such file"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(run: Any, flags: str, said: str) -> None:
    code, _, err = run("export", *flags.split(), "-o", "bundle")
    assert code == 2
    assert said in err


def test_a_shared_weight_is_in_the_file_once_and_dicts_of_outputs_are_named() -> None:
    found, wrong, errors = faults("blocks:Tied", f'outputs = ["logits", "best"]\n{IDS}{SMALL}', "onnx-decomposed")
    assert wrong == []
    assert {by_output["best"] for by_output in errors.values()} == {0.0}
    assert [(t.name, t.dtype, t.dims) for t in found.tensors()[1]] == [
        ("logits", "fp32", ("batch", "T", 100)), ("best", "int64", ("batch", "T")),
    ]  # fmt: skip
    model = onnx.load("work/new/model.onnx")
    assert [list(t.dims) for t in model.graph.initializer if len(t.raw_data) >= 100 * 64 * 4] == [[100, 64]]
    assert any("1 of the 2 weights are shared" in note for note in found.notes())


def test_a_module_of_integers_is_cast_to_the_dtype_of_the_file() -> None:
    found = take("blocks:Tied", f'dtype = "bf16"\noutputs = ["logits", "best"]\n{IDS}{SMALL}')
    assert [spec["dtype"] for spec in found["problem"]["outputs"]] == ["bf16", "int64"]
    assert found["weights"]["size_bytes"] == 100 * 64 * 2


def test_rows_of_booleans_without_a_key_are_judged_by_the_declared_path() -> None:
    found, wrong, _ = faults("blocks:Wrapped", X + PAD + SMALL, "onnx-decomposed")
    assert {fault.partition(":")[0] for fault in wrong} == {"golden/rows-true.npz"}
    message = str(found.wrong("it is wrong", wrong))
    assert "the first row of boolean inputs is all True" in message
    assert "whole_rows = false" in message
    with np.load("work/new/golden/rows-true.npz") as stored:
        np.testing.assert_array_equal(stored["out_y"][0], 0.0)  # the bias of out_proj, which starts as zero


def test_rows_that_never_are_whole_need_not_be_right() -> None:
    _, wrong, errors = faults("blocks:Wrapped", f"{X}{PAD}whole_rows = false\n{SMALL}", "onnx-decomposed")
    assert wrong == []
    assert len(errors) == 9


def test_a_recipe_whose_mask_means_something_else_is_wrong_at_rows_of_false() -> None:
    _, wrong, _ = faults("blocks:Own", OWN + MASK + SMALL, "onnx-decomposed")
    assert {fault.partition(":")[0] for fault in wrong} == {"golden/rows-false.npz"}


def test_an_if_on_a_length_is_found_at_length_one() -> None:
    found, wrong, _ = faults("blocks:DecidesByLength", X + SMALL, "onnx-decomposed")
    assert {fault.partition(":")[0] for fault in wrong} == {"golden/least-T.npz", "golden/least.npz"}
    error = found.wrong("it is wrong", wrong)
    assert isinstance(error, FrozenDimError)
    assert "decides by a size (as `if x.shape[1] > 1` does)" in str(error)
    assert "write min = 2 in [ranges]" in str(error)


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "torch"])
def test_a_table_that_is_sliced_may_be_taken_whole(target: str) -> None:
    found = source("blocks:Table", X + SMALL)
    Path("work/new").mkdir(parents=True)
    wrong, errors = run_cases(found, "onnx-decomposed", Path("work/new"), target)
    assert wrong == []
    assert "golden/most-T.npz" in errors


def test_outputs_of_sizes_of_their_own_and_single_numbers_are_judged() -> None:
    past = '[inputs.past]\ndtype = "fp32"\ndims = ["batch", "P", 32]\n'
    found, wrong, _ = faults("blocks:Mean", X + past + SMALL, "onnx-decomposed")
    assert wrong == []
    assert [(t.name, t.dims) for t in found.tensors()[1]] == [("y0", ("batch", "y0_1", 32)), ("y1", ())]
    golden = found.write_golden(Here(), Path("work/new"))  # type: ignore[arg-type]
    assert len({case.limits["y1"] for case in golden}) == 1
    assert all("y1: " in case.reason and "of all cases" in case.reason for case in golden)


@pytest.mark.parametrize("recipe", ["onnx-decomposed", "onnx-attention"])
def test_a_decode_step_is_proved_from_an_empty_cache_on(recipe: str) -> None:
    past = "".join(f'[inputs.past_{n}]\ndtype = "fp32"\ndims = ["batch", "P", 32]\n' for n in "kv")
    found, wrong, errors = faults(
        "blocks:Step", f'outputs = ["y", "k", "v"]\n{X}{past}{SMALL}[ranges.P]\nmin = 0\n', recipe
    )
    assert wrong == []
    assert "golden/least-P.npz" in errors
    assert [t.dims for t in found.tensors()[1]] == [("batch", "T", 32), ("batch", "k_1", 32), ("batch", "k_1", 32)]
    (empty,) = [case for case in found.write_golden(Here(), Path("work/new")) if case.file == "golden/least-P.npz"]  # type: ignore[arg-type]
    assert empty.sizes["P"] == 0


def test_what_a_module_makes_in_fp32_is_made_in_float64_for_its_reference() -> None:
    for case in take("blocks:NormInFp32", X + SMALL)["golden"]:
        with np.load(Path("new") / case["file"]) as stored:
            x = stored["in_x"].astype(np.float64)
            expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) + 1
            np.testing.assert_allclose(stored["out_y"], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "module", "code", "said"),
    [
        (ExportError, "DecidesByValue", "if x.sum() > 0:", "it decides by the values of a tensor"),
        (
            FrozenDimError,
            "Bakes",
            "return x + torch.tensor(np.arange(int(x.shape[1])), dtype=x.dtype)[:, None]",
            "T becomes the number 11 of the example",
        ),
        (InputError, "OneLength", "return self.mask @ x", "RuntimeError: Expected size"),
        (InputError, "OnlyFp32", 'raise TypeError("I take float32")', "TypeError: I take float32"),
        (FrozenDimError, "AboveFive", "", "allows only some sizes of a free dim (6 <= T and T <= 40); set min and max"),
        (InputError, "Exits", "", "it calls sys.exit"),
        (InputError, "Random", "", "gives two answers to one question"),
        (InputError, "WritesToItsInput", "", "writes to its input x in place"),
        (InputError, "Words", "", "this one gives str; return tensors"),
        (InputError, "Own", "", "cannot be constructed with [arguments] (none): TypeError: Own.__init__() missing 2"),
        (InputError, "Nowhere", "", "blocks has no class 'Nowhere'; it has Own, Wrapped, Tied"),
        (InputError, "not_a_class", "", "blocks has no class 'not_a_class'"),
        (InputError, "Tied", "", "forward of blocks:Tied has no parameter x; it takes ids"),
    ],
)
def test_what_cannot_be_shipped_is_refused_with_its_line(
    kind: type[AttnbenchError], module: str, code: str, said: str
) -> None:
    with pytest.raises(kind) as caught:
        take(f"blocks:{module}", X + SMALL)
    assert said in str(caught.value)
    if code:
        assert f"blocks.py, line {line_of(code)}: " in str(caught.value)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raises:Own", "raises cannot be imported: raises.py, line 2: AttributeError"),
        ("nowhere.blocks:Own", "there is no module 'nowhere' in"),
        ("blocks", "--module must be package.module:Class, got 'blocks'"),
    ],
)
def test_code_that_cannot_be_imported_is_told(module: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        take(module, X + SMALL)
    assert said in str(caught.value)


def test_weights_of_another_model_are_refused_with_their_keys() -> None:
    weights = own_weights()
    weights["qkv.weight"], weights["extra.weight"] = weights["qkv.weight"][:, :16], weights.pop("out.bias")
    write_safetensors(Path("own.safetensors"), weights)
    with pytest.raises(InputError) as caught:
        take("blocks:Own", f'weights = "own.safetensors"\n{OWN}{SMALL}')
    for part in ("missing: out.bias", "unexpected: extra.weight", "of another shape: qkv.weight is (96, 16)"):
        assert part in str(caught.value)


def test_a_pickle_that_is_called_safetensors_is_refused() -> None:
    Path("own.safetensors").write_bytes(b"\x80\x04]\x94.")
    with pytest.raises(InputError, match=r"weights: .*own.safetensors"):
        take("blocks:Own", f'weights = "own.safetensors"\n{OWN}{SMALL}')


def test_an_engine_takes_every_size_of_the_ranges_and_needs_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = source("blocks:Own", OWN + MASK + SMALL)
    assert found.profile() == {
        "x": [[1, 1, 32], [3, 40, 32], [3, 40, 32]], "mask": [[1, 1, 1, 1], [3, 1, 40, 40], [3, 1, 40, 40]],
    }  # fmt: skip
    monkeypatch.setattr(rtx, "MODULE", "no_such_compiler")
    Path("work/new").mkdir(parents=True)
    with pytest.raises(UnavailableError, match="pip install tensorrt-rtx"):
        run_cases(found, "onnx-attention", Path("work/new"), "tensorrt-rtx")


def test_cases_that_no_bundle_holds_are_refused_before_they_are_written() -> None:
    with pytest.raises(
        InputError, match=r"would take \d+ bytes, at most 268435456 are kept in a bundle; lower the max"
    ):
        take("blocks:NormInFp32", X + "[ranges.T]\nmax = 400000\n")
    assert list(Path("new").iterdir()) == []


def test_a_module_that_calls_no_attention_has_no_recipe_for_it() -> None:
    with pytest.raises(UnsupportedError, match="calls no scaled_dot_product_attention"):
        faults("blocks:NormInFp32", X + SMALL, "onnx-blocked")
