import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attnbench

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
HEAVY = (
    "torch",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "openvino",
    "tensorrt",
    "pandas",
    "matplotlib",
    "pyarrow",
    "scipy",
)


def imported_by(statement: str) -> set[str]:
    """Top-level names of all modules that a fresh interpreter has after the statement."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def targets() -> list[str]:
    """All phony targets of the Makefile."""
    match = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert match is not None
    return match[1].split()


@pytest.mark.parametrize("group", ["attnbench.exporters", "attnbench.runtimes"])
def test_entry_points_in_pyproject_are_those_installed(group: str) -> None:
    declared = PYPROJECT["project"]["entry-points"][group]
    points = importlib.metadata.distribution("attnbench").entry_points.select(group=group)
    installed = {point.name: point.value for point in points}
    assert installed == declared, "entry points are read at installation: run `make setup` again (pip install -e .)"


def test_every_entry_point_names_a_file_of_this_tree() -> None:
    for kind in ("exporters", "runtimes"):
        for name, value in PYPROJECT["project"]["entry-points"][f"attnbench.{kind}"].items():
            module, _, attribute = value.partition(":")
            source = ROOT / kind / (module.replace(".", "/") + ".py")
            assert source.is_file(), f"{name} = {value}: {source} is missing"
            assert f"class {attribute}" in source.read_text(encoding="utf-8"), f"{name} = {value}"


@pytest.mark.parametrize(
    "module",
    ["attnbench", "attnbench.cli", "attnbench.plugins", "attnbench.flags", "attnbench.terminal", "attnbench.api",
     "attnbench.sweep.runner", "attnbench.doctor", "attnbench.report.build", "attnbench.records"],
)  # fmt: skip
def test_the_parent_process_imports_no_framework(module: str) -> None:
    assert imported_by(f"import {module}").isdisjoint(HEAVY)


def test_the_command_line_starts_without_numpy() -> None:
    assert "numpy" not in imported_by("import attnbench.cli")


def test_the_front_door_is_open_and_light() -> None:
    assert "numpy" not in imported_by("import attnbench")
    for name in attnbench.__all__:
        assert name in dir(attnbench)
        assert getattr(attnbench, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        attnbench.no_such_name  # noqa: B018


def test_the_version_is_written_in_one_place() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "attnbench/__init__.py"
    assert importlib.metadata.version("attnbench") == attnbench.__version__


def test_imports_go_in_one_direction() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_make_help_has_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    listed = re.findall(r"^  make ([a-z-]+) +\S", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(targets())


def test_make_help_has_every_setting() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    settings = re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE)
    assert len(settings) >= 7
    for setting in settings:
        assert re.search(rf"^  {setting}=", done.stdout, re.MULTILINE), setting


@pytest.mark.parametrize(
    "target",
    ["setup", "bench", "test", "check", "wheel-test", "perf", "clean", "wheelhouse", "gpu-wheels", "gpu-check"],
)
def test_targets_that_people_are_told_of_exist(target: str) -> None:
    assert target in targets()
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


OF_MAKE = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "ARGS", "WORKERS"}  # what make test ARGS=... hands to its children


@pytest.mark.parametrize(
    ("settings", "asked", "cores", "told"),
    [
        ([], 2, 4, []),
        ([], 0, 1, []),
        (["WORKERS=4"], 4, 4, []),
        (["WORKERS=4"], 3, 3, []),
        (["WORKERS=1"], 0, 4, []),
        (["WORKERS=0"], 0, 4, []),
        (["ARGS=tests/test_plugins.py -x"], 0, 4, ["tests/test_plugins.py", "-x"]),
        (["ARGS=-m slow", "WORKERS=2"], 2, 4, ["-m", "slow"]),
    ],
)
def test_make_test_runs_files_at_once_where_there_are_cores_and_no_file_was_named(
    tmp_path: Path, settings: list[str], asked: int, cores: int, told: list[str]
) -> None:
    for name, answer in (("pytest", '"$@"'), ("getconf", str(cores))):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s\\n' {answer}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    ours = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    done = subprocess.run(
        ["make", "--silent", "--assume-old=setup", "test", f"BIN={tmp_path}", *settings], cwd=ROOT, text=True,
        env=ours | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["-n", str(asked), "--dist", "loadfile", *told]


def test_make_setup_refuses_a_python_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup_env.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        ["make", "setup", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert f"make setup needs Python 3.11 or newer, and {old} is not" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_constraints_pin_every_dependency_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["cpu"],
        *project["optional-dependencies"]["rtx"],
        *project["optional-dependencies"]["dev"],
    ]
    names = {re.split(r"[<>=~!\[; ]", requirement)[0] for requirement in wanted}
    assert names <= set(pins), sorted(names - set(pins))


def test_onnxruntime_is_never_a_core_dependency() -> None:
    assert not [name for name in PYPROJECT["project"]["dependencies"] if name.startswith("onnxruntime")]
    for extra in ("cpu", "gpu"):
        names = [re.split(r"[<>=]", r)[0] for r in PYPROJECT["project"]["optional-dependencies"][extra]]
        assert len([name for name in names if name.startswith("onnxruntime")]) == 1


def test_ci_calls_what_people_call_and_the_tests_last() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines() if line.strip()]
    assert "set -euo pipefail" in lines
    called = [line.split()[1] for line in lines if line.startswith("make ")]
    assert set(called) <= set(targets())
    assert {"check", "wheel-test", "bench", "gpu-wheels", "test"} <= set(called)
    assert lines[-1] == "make test"


def test_every_module_is_at_most_400_lines() -> None:
    for folder in ("attnbench", "exporters", "runtimes"):
        for path in (ROOT / folder).rglob("*.py"):
            count = len(path.read_text(encoding="utf-8").splitlines())
            assert count <= 400, f"{path.relative_to(ROOT)} has {count} lines"


def test_the_changelog_has_an_unreleased_part() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_results_readme_names_real_columns() -> None:
    from attnbench.records import COLUMNS, STATUSES

    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    files = {"manifest", "records", "samples", "report"}
    values = {"host_with_copies", "device_graph", "device_shared", "beats_roofline", "other_kernel", "gpu_workers"}
    for word in re.findall(r"`([a-z][a-z_]*_[a-z_0-9]+)`", text):
        assert word in COLUMNS or word in values, word
    assert files
    for status in STATUSES:
        assert f"`{status}`" in text, status
