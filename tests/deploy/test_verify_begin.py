"""verify.py says what it needs, on whatever machine it is started, and is not led astray by files beside it."""

import ast
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from attnbench.deploy import verify_begin
from attnbench.deploy.write import verifier
from tests.deploy.bundles import run_verify


def test_without_numpy_it_is_exit_code_5_with_what_to_type(tmp_path: Path) -> None:
    """In an environment of its own that has nothing at all."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean"], check=True)
    (tmp_path / "verify.py").write_text(verifier(), encoding="utf-8")
    done = run_verify(tmp_path, python=tmp_path / "clean" / "bin" / "python")
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout == "cannot load: numpy cannot be imported (No module named 'numpy'); pip install numpy\n"


@pytest.mark.parametrize("version", [(3, 8), (3, 9)])
def test_python_before_3_10_can_read_it_and_is_told(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ast.parse(verifier(), feature_version=version)
    old = types.SimpleNamespace(version_info=version, path=list(sys.path), exit=sys.exit)
    monkeypatch.setattr(verify_begin, "sys", old)
    with pytest.raises(SystemExit) as caught:
        verify_begin.begin("/nowhere/verify.py")
    assert caught.value.code == 5
    words = f"cannot load: Python {version[0]}.{version[1]} is too old; run it by 3.10 or newer\n"
    assert capsys.readouterr().out == words


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_a_real_old_python_is_told(version: str, tmp_path: Path) -> None:
    python = shutil.which(f"python{version}") or ""
    if not python or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no python{version} is installed")
    (tmp_path / "verify.py").write_text(verifier(), encoding="utf-8")
    done = run_verify(tmp_path, python=python)
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout == f"cannot load: Python {version} is too old; run it by 3.10 or newer\n"


@pytest.mark.parametrize("name", ["numpy", "onnxruntime", "argparse", "json"])
def test_a_module_beside_it_is_never_imported(ort_bundle: Path, copy: Any, name: str) -> None:
    folder = copy(ort_bundle)
    (folder / f"{name}.py").write_text("raise SystemExit('taken from the bundle')\n", encoding="utf-8")
    done = run_verify(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "right: 6 cases" in done.stdout
