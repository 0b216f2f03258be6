"""`attnbench bench` with a model of the user: what the flags say, and what they may not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnbench import cli_model, model_flags
from attnbench.errors import InputError
from tests.conftest import Call, assert_one_sentence


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    path = tmp_path / "my model é.onnx"
    path.write_bytes(b"looked at by the engine, not by the flags")
    return path


def refusal(run: Callable[..., Call], *argv: object) -> str:
    call = run("bench", *map(str, argv))
    assert_one_sentence(call)
    return call[2]


def test_the_flags_of_a_model_are_the_arguments_of_bench(
    run: Callable[..., Call], benched: dict[str, Any], onnx: Path, tmp_path: Path
) -> None:
    arrays = tmp_path / "in.npz"
    arrays.touch()
    run("bench", "--onnx", str(onnx), "--bind", "seq=T", "--bind", "kv = T/2", "--set", "batch=1,8", "--set", "a=b=3",
        "--shapes", "x:8x512,'Input:0':scalar", "--shapes", "mask:4", "--load-inputs", str(arrays), "--save-outputs",
        str(tmp_path / "out.npz"), "-s", "64,128", "--runtimes", "ort-cpu", "--threads", "1", "--seed=7")  # fmt: skip
    assert {key: benched[key] for key in ("onnx", "bind", "sizes", "shapes", "load_inputs", "save_outputs")} == {
        "onnx": onnx, "bind": {"seq": "T", "kv": "T/2"}, "sizes": {"batch": (1, 8), "a=b": (3,)},
        "shapes": {"x": (8, 512), "Input:0": (), "mask": (4,)}, "load_inputs": arrays,
        "save_outputs": tmp_path / "out.npz",
    }  # fmt: skip
    rest = {key: benched[key] for key in ("seq_lens", "runtimes", "threads", "seed")}
    assert rest == {"seq_lens": [64, 128], "runtimes": ["ort-cpu"], "threads": 1, "seed": 7}
    assert "module" not in benched


def test_a_module_comes_with_its_inputs_and_may_be_exported(
    run: Callable[..., Call], benched: dict[str, Any], tmp_path: Path
) -> None:
    told = tmp_path / "inputs.toml"
    told.touch()
    run("bench", "--module", "blocks:Mine", "--inputs", str(told), "--exporters", "onnx-decomposed", "--opset", "20")
    assert {key: benched[key] for key in ("module", "inputs", "exporters", "opset")} == {
        "module": "blocks:Mine", "inputs": told, "exporters": ["onnx-decomposed"], "opset": [20]
    }  # fmt: skip


def test_a_run_of_the_built_in_attention_has_no_argument_of_a_model(
    run: Callable[..., Call], benched: dict[str, Any]
) -> None:
    run("bench", "quick")
    assert benched["sweep"] == "quick"
    assert not {"onnx", "module", "engine", "bind", "sizes", "shapes"} & set(benched)


def test_a_dry_run_plans_the_model(run: Callable[..., Call], benched: dict[str, Any], onnx: Path) -> None:
    code, _, err = run("bench", "--onnx", str(onnx), "--dry-run")
    assert (code, "this plan goes no further" in err) == (2, True)
    assert benched["onnx"] == onnx


@pytest.mark.parametrize(
    "given",
    [
        ["--variants", "self"], ["--num-heads", "8"], ["--mask", "alibi"], ["--batch-sizes", "2"], ["--dtype", "fp16"],
        ["--preset", "bert-base"], ["--part", "core"], ["--kv-lens", "4"], ["--scale", "1"], ["--bias"], ["--stress"],
        ["--refine"], ["--memory-budget", "1GiB"], ["--measure-frontier"], ["--q-lens", "1"], ["--value-map", "joint"],
        ["--head-dims", "64"], ["--num-kv-heads", "2"], ["--v-head-dims", "64"],
    ],
)  # fmt: skip
def test_what_needs_the_built_in_attention_is_refused_by_name(
    run: Callable[..., Call], benched: dict[str, Any], onnx: Path, given: list[str]
) -> None:
    told = refusal(run, "--onnx", onnx, *given)
    assert given[0].rstrip("s") in told
    assert "is for the built-in attention, not for a model of yours" in told
    assert benched == {}


def test_no_flag_of_bench_is_left_between(run: Callable[..., Call]) -> None:
    """Every flag is of the attention, of a model, or of both: a new one has to be thought about."""
    from typer.main import get_command

    from attnbench.cli import app

    names = {p.name for p in get_command(app).commands["bench"].params}  # type: ignore[attr-defined]
    both = {
        "seq_lens", "exporters", "runtimes", "opset", "options", "baseline", "threads", "time_budget", "timeout",
        "memory_limit", "seed", "require", "no_oom_skip", "dry_run", "out", "resume", "as_json", "quiet", "junit",
        "markdown", "metrics", "device", "gpu_workers", "fp32",
    }  # fmt: skip
    both |= {"gpu_archs"}  # an architecture is compiled for whatever the file holds
    assert names == both | set(cli_model.OF_ATTENTION) | set(cli_model.OF_MODEL)


def test_a_file_takes_no_exporter_and_no_opset(run: Callable[..., Call], onnx: Path) -> None:
    told = refusal(run, "--onnx", onnx, "--exporters", "onnx-attention", "--opset", "20")
    assert "--exporters, --opset is for what is exported, and the model is a file already" in told
    assert "SWEEP is for the built-in attention" in refusal(run, "quick", "--onnx", onnx)


def test_arms_of_a_file_are_file_at_a_runtime(run: Callable[..., Call], benched: dict[str, Any], onnx: Path) -> None:
    run("bench", "--onnx", str(onnx), "--baseline", "file@openvino", "--require", "file@ort-cpu,file@openvino")
    assert benched["baseline"] == "file@openvino"
    assert benched["require"] == ["file@ort-cpu", "file@openvino"]
    assert "no exporter 'onnx-attentoin'" in refusal(run, "--onnx", onnx, "--require", "onnx-attentoin@ort-cpu")
    assert "no exporter 'file'" in refusal(run, "--require", "file@ort-cpu")


def test_one_model_at_a_time(run: Callable[..., Call], onnx: Path) -> None:
    told = refusal(run, "--onnx", onnx, "--module", "a:B", "--inputs", onnx)
    assert "--onnx and --module are different models; give one" in told
    told = refusal(run, "--onnx", onnx, "--module", "a:B", "--engine", onnx)
    assert "--onnx and --module and --engine are different models; give one" in told
    assert "--module and --inputs go together, got --module without --inputs" in refusal(run, "--module", "a:B")
    assert "got --inputs without --module" in refusal(run, "--onnx", onnx, "--inputs", onnx)


def test_an_engine_goes_with_the_file_that_it_was_compiled_from(
    run: Callable[..., Call], benched: dict[str, Any], onnx: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "m.plan"
    plan.touch()
    run("bench", "--onnx", str(onnx), "--engine", str(plan), "--require", "engine@tensorrt,file@ort-cpu")
    assert {key: benched[key] for key in ("onnx", "engine", "require")} == {
        "onnx": onnx, "engine": plan, "require": ["engine@tensorrt", "file@ort-cpu"]
    }  # fmt: skip
    benched.clear()
    run("bench", "--engine", str(plan), "--baseline", "engine@tensorrt-rtx")
    assert benched["engine"] == plan
    assert "onnx" not in benched


def test_sizes_without_a_model_are_refused(run: Callable[..., Call]) -> None:
    told = refusal(run, "--bind", "seq=T", "--set", "batch=1")
    assert "--bind, --set is about a model of yours; name it with --onnx FILE" in told


def test_a_run_that_is_resumed_knows_its_model(run: Callable[..., Call], tmp_path: Path, onnx: Path) -> None:
    (tmp_path / "manifest.json").touch()
    assert "--onnx too" in refusal(run, "--resume", tmp_path, "--onnx", onnx)
    assert "--set too" in refusal(run, "--resume", tmp_path, "--set", "batch=2")


def test_files_are_looked_at_before_anything_runs(
    run: Callable[..., Call], benched: dict[str, Any], onnx: Path, tmp_path: Path
) -> None:
    assert "--onnx must be a file that exists, got" in refusal(run, "--onnx", tmp_path / "none.onnx")
    assert "--onnx must be a file, but" in refusal(run, "--onnx", tmp_path)
    assert "--load-inputs must be a file that exists" in refusal(run, "--onnx", onnx, "--load-inputs", "none.npz")
    assert "--save-outputs must lie in a folder that exists" in refusal(
        run, "--onnx", onnx, "--save-outputs", tmp_path / "none" / "out.npz"
    )
    assert "--save-outputs writes a .npz, got" in refusal(run, "--onnx", onnx, "--save-outputs", tmp_path / "out.txt")
    assert "--save-outputs must not be called 'records.csv'" in refusal(
        run, "--onnx", onnx, "--save-outputs", tmp_path / "records.csv"
    )
    assert benched == {}


@pytest.mark.parametrize("text", ["seq", "=T", "seq=", ""])
def test_bind_needs_a_name_and_what_it_is(text: str) -> None:
    with pytest.raises(InputError, match="--bind must be a name, = and what it is"):
        model_flags.parse_bind([text])


def test_a_name_is_given_once() -> None:
    with pytest.raises(InputError, match="--bind has 'seq' twice, the second time as 'seq=T'"):
        model_flags.parse_bind(["seq=T/2", "seq=T"])
    with pytest.raises(InputError, match="--set has 'batch' twice"):
        model_flags.parse_set(["batch=1", "batch=2"])
    with pytest.raises(InputError, match="--shapes has 'x' twice"):
        model_flags.parse_shapes(["x:1,x:2"])


@pytest.mark.parametrize("value", ["-1", "1.5", "x", "1,,2", "1,1", "T"])
def test_a_set_size_is_a_whole_number(value: str) -> None:
    with pytest.raises(InputError, match="--set"):
        model_flags.parse_set([f"batch={value}"])


def test_two_names_in_one_set_are_told_apart() -> None:
    with pytest.raises(InputError, match="--set takes one name, got 'batch=1,heads=4'; write --set once for each"):
        model_flags.parse_set(["batch=1,heads=4"])


@pytest.mark.parametrize("text", ["x", "x:", ":8", "x:8x", "x:8*512", "x:-1x2", "x:8xT"])
def test_shapes_are_names_and_sizes(text: str) -> None:
    with pytest.raises(InputError, match="--shapes"):
        model_flags.parse_shapes([text])


@pytest.mark.parametrize(
    ("given", "way"),
    [
        (["--set", "batch=-1"], "write for example --set batch=1"),
        (["--shapes", "x:8x-1"], "write for example --shapes x:8x512"),
    ],
)
def test_the_way_out_of_a_wrong_size_can_be_typed(
    run: Callable[..., Call], onnx: Path, given: list[str], way: str
) -> None:
    assert way in " ".join(refusal(run, "--onnx", onnx, *given).split())
