import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def setup_env() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_clean_environment_gets_the_clone_with_its_extra(setup_env: ModuleType) -> None:
    assert setup_env.needed("cpu", {}) == [f"{ROOT}[cpu,rtx,dev]"]


def test_a_system_torch_keeps_its_version(setup_env: ModuleType) -> None:
    pins = "# pins\ntorch==2.13.0\nnumpy==2.4.6\n"
    system = {"torch": "2.10.0a0+nv25.12", "numpy": "1.26.4", "tensorrt-cu13": "10.14.1"}
    assert setup_env.constrain(pins, system).splitlines() == [
        "# pins", "numpy==2.4.6", "tensorrt-cu13==10.14.1", "torch==2.10.0a0+nv25.12",
    ]  # fmt: skip


@pytest.mark.parametrize("have", ["onnxruntime", "onnxruntime-gpu"])
@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_no_second_onnxruntime_is_put_beside_the_systems(setup_env: ModuleType, have: str, extra: str) -> None:
    wanted = setup_env.needed(extra, {have: "1.25.0", "torch": "2.13.0"})
    assert wanted[0] == f"{ROOT}[dev]"
    assert not [requirement for requirement in wanted[1:] if requirement.startswith("onnxruntime")]
    assert len(wanted) > 1


@pytest.mark.parametrize(
    ("have", "others"),
    [
        ("tensorrt", ["tensorrt-rtx"]),
        ("tensorrt-cu13", ["tensorrt-rtx"]),
        ("tensorrt-rtx", ["tensorrt"]),
        ("tensorrt-rtx-cu13", ["tensorrt"]),
    ],
)
def test_a_systems_tensorrt_is_not_asked_for_again(setup_env: ModuleType, have: str, others: list[str]) -> None:
    wanted = setup_env.needed("gpu", {have: "10.9.0"})
    names = [setup_env.requirement_name(requirement) for requirement in wanted[1:]]
    assert [name for name in names if name.startswith("tensorrt")] == others
    assert [requirement for requirement in wanted if requirement.startswith("onnxruntime-gpu")]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (subprocess.CompletedProcess([], 0, b"GPU 0: NVIDIA H200 (UUID: GPU-1)\n", b""), True),
        (subprocess.CompletedProcess([], 0, b"No devices found\n", b""), False),
        (subprocess.CompletedProcess([], 9, b"", b"NVIDIA-SMI has failed"), False),
    ],
)
def test_the_gpu_extra_needs_a_driver_that_works(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, answer: Any, expected: bool
) -> None:
    monkeypatch.setattr(setup_env.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(setup_env.subprocess, "run", lambda *args, **kwargs: answer)
    assert setup_env.has_nvidia_driver() is expected


def test_pip_is_told_what_the_settings_say(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(setup_env, "pip", lambda *arguments: calls.append([str(a) for a in arguments]) or 0)
    house = tmp_path / "wheel house"
    house.mkdir()
    assert setup_env.main(["--extra", "cpu", "--offline", str(house)]) == 0
    assert calls.pop()[3:] == ["--no-index", "--find-links", str(house), "--editable", f"{ROOT}[cpu,rtx,dev]"]
    assert setup_env.main(["--extra", "cpu", "--torch-index", "file:///torch"]) == 0
    assert calls[0][3:] == ["--index-url", "file:///torch", "torch"]
    assert calls[1][3:] == ["--editable", f"{ROOT}[cpu,rtx,dev]"]
    calls.clear()
    (house / "attnbench-0.1.0-py3-none-any.whl").touch()
    assert setup_env.main(["--extra", "gpu", "--wheelhouse", str(house)]) == 0
    assert calls[0][:3] == ["wheel", "--wheel-dir", str(house)]
    assert f"{ROOT}[gpu,rtx,dev]" in calls[0]
    assert "hatchling" in calls[0]
    assert list(house.iterdir()) == []


def test_offline_without_a_folder_is_refused(setup_env: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup_env.main(["--extra", "cpu", "--offline", "no/such/folder"]) == 2
    assert "OFFLINE must be a folder that `make wheelhouse` filled, got 'no/such/folder'" in capsys.readouterr().err
