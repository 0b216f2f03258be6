"""docs/your-model.md: its commands can be typed, and do what it says."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from attnbench_runtimes import cuda_driver
from tests.conftest import Call
from tests.runtimes.engine_rig import save_plan
from tests.test_docs import options

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "your-model.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^attnbench (bench .*)$", PAGE, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page's user: encoder.onnx with ids and mask, and a module with its inputs.toml."""
    dims = ["batch", "seq"]
    ids, mask = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in ("ids", "mask"))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)
    graph = helper.make_graph([helper.make_node("Add", ["ids", "mask"], ["y"])], "g", [ids, mask], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "encoder.onnx")
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "blocks.py").write_text(
        "import torch\n\n\nclass MyAttention(torch.nn.Module):\n"
        "    def forward(self, x):\n        return torch.softmax(x @ x.mT, -1) @ x\n"
    )
    (tmp_path / "inputs.toml").write_text(
        '[inputs.x]\ndtype = "fp32"\ndims = ["batch", "T", 8]\n\n[ranges.T]\nmax = 2048\n'
    )
    np.savez(tmp_path / "in.npz", ids=np.zeros((2, 3), np.float32), mask=np.zeros((2, 3), np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_shown_plan_a_run(folder: Path, run: Callable[..., Call]) -> None:
    commands = [command for command in COMMANDS if "--engine" not in command]
    assert len(commands) == 2
    for command in commands:
        code, out, err = run(*shlex.split(command), "--dry-run")
        assert (code, err) == (0, ""), command
        assert "T = 128, 256, 512, 1024" in out
        assert "predicted memory at least " in out


def test_the_commands_with_an_engine_do_without_a_gpu_what_can_be_done(folder: Path, run: Callable[..., Call]) -> None:
    if not cuda_driver.why_no_gpu():
        pytest.skip("there is a GPU here, and no engine for it")
    save_plan(folder / "encoder.plan", b"ftrt")
    beside, alone = [command for command in COMMANDS if "--engine" in command]
    code, out, err = run(*shlex.split(beside), "--dry-run")
    assert (code, err) == (0, "")
    assert [arm for arm in ("file@ort-cpu", "file@openvino", "engine@tensorrt") if arm in out.split()] == [
        "file@ort-cpu", "file@openvino", "engine@tensorrt",
    ]  # fmt: skip
    code, out, err = run(*shlex.split(alone), "--dry-run")
    assert (code, out) == (3, "")
    assert "bench the ONNX file that it was compiled from with --onnx" in err


@pytest.mark.parametrize(
    ("given", "planned"),
    [
        ("--bind seq=T --set batch=1,8 -s 64", "4 cases: 2 problems (T = 64) x 2 arms"),
        ("--bind seq=T --bind batch=T/2 -s 64,128", "4 cases: 2 problems (T = 64, 128) x 2 arms"),
        ("--shapes ids:8x512,mask:8x512", "2 cases: 1 problem x 2 arms"),
        ("--load-inputs in.npz", "2 cases: 1 problem x 2 arms"),
        ("--set batch=8 --set seq=512 --save-outputs out.npz", "2 cases: 1 problem x 2 arms"),
    ],
)
def test_every_way_to_give_sizes_plans_what_the_page_says(
    folder: Path, run: Callable[..., Call], given: str, planned: str
) -> None:
    code, out, err = run("bench", "--onnx", "encoder.onnx", *given.split(), "--dry-run")
    assert (code, err) == (0, "")
    assert planned in out
    assert not list(folder.glob("results*"))


def test_every_flag_named_is_one_of_bench_or_fusion() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert {"--bind", "--set", "--shapes", "--load-inputs", "--save-outputs", "--engine"} <= named
    assert named <= options()["bench"] | options()["fusion"]


def test_every_file_that_is_linked_exists_and_the_page_is_linked() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert "docs/your-model.md" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "blob", "part"),
    [("text.onnx", b"hello\n", "it is no ONNX file"), ("empty.onnx", b"", "it has 0 bytes"),
     ("w.pt", b"PK\x03\x04", "it may hold pickled code")],
)  # fmt: skip
def test_a_wrong_file_is_named_as_the_user_named_it(
    folder: Path, run: Callable[..., Call], name: str, blob: bytes, part: str
) -> None:
    (folder / name).write_bytes(blob)
    code, out, err = run("bench", "--onnx", name, "--set", "batch=1")
    assert (code, out) == (2, "")
    assert err.startswith(f"attnbench: '{name}' is refused: ")
    assert part in err


def test_wrong_inputs_are_named_as_the_user_named_them(folder: Path, run: Callable[..., Call]) -> None:
    np.savez("half.npz", ids=np.zeros((2, 3), np.float32))
    code, _, err = run("bench", "--onnx", "encoder.onnx", "--load-inputs", "half.npz", "--set", "seq=3")
    assert code == 2
    assert err.startswith("attnbench: --load-inputs 'half.npz' lacks mask; its arrays are ids")
