"""What the machine tells, on made-up system files, and the environment that workers get."""

import json
import os
import subprocess
import sys

import pytest

from attnbench.measure import environment as e


def test_the_description_is_json_and_tells_cpu_memory_and_versions():
    found = json.loads(json.dumps(e.describe()))
    assert found["versions"]["numpy"]
    assert found["machine"]["hardware_dtypes"][0] == "fp32"
    assert found["default_threads"] >= 1


def test_describing_imports_no_framework():
    code = (
        "import sys; from attnbench.measure.environment import describe; describe(); "
        "print({'torch', 'onnx', 'onnxruntime', 'openvino', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ("fp32",)),
        (["avx512_bf16"], ("fp32", "bf16")),
        (["amx_bf16", "amx_fp16"], ("fp32", "fp16", "bf16")),
        (["avx512f", "f16c"], ("fp32",)),  # converts fp16, does not multiply it
    ],
)
def test_hardware_dtypes_follow_the_cpu_flags(flags, expected):
    assert e.hardware_dtypes(flags) == expected


@pytest.mark.parametrize(
    ("usable", "quota", "cores", "expected"),
    [
        (range(16), None, 8, 7),  # two threads a core
        (range(4), None, 8, 3),
        (range(16), 2.5, 8, 1),
        (range(16), 0.5, 8, 1),
        (range(1), None, 1, 1),
    ],
)
def test_default_threads_leave_one_core_free(monkeypatch, usable, quota, cores, expected):
    monkeypatch.setattr(e, "affinity", lambda: list(usable))
    monkeypatch.setattr(e, "cgroup_cpu_quota", lambda: quota)
    monkeypatch.setattr(e, "physical_cores", lambda: cores)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert e.default_threads() == expected


def _files(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_physical_cores_count_siblings_once(tmp_path):
    files = {}
    for cpu, (package, core) in enumerate([("0", "0"), ("0", "0"), ("0", "1"), ("1", "0")]):
        files |= {f"cpu{cpu}/topology/core_id": core, f"cpu{cpu}/topology/physical_package_id": package}
    assert e.physical_cores(_files(tmp_path, files)) == 3
    assert e.physical_cores(tmp_path / "none") is None


def test_the_tightest_quota_of_the_control_groups_counts(tmp_path):
    root = _files(tmp_path / "cgroup", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"})
    (tmp_path / "own").write_text("0::/a/b\n")
    assert e.cgroup_cpu_quota(root, tmp_path / "own") == 1.5
    period = {"cpu/cpu.cfs_period_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}
    quota = {"cpu/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_quota_us": "50000"}
    root = _files(tmp_path / "v1", period | quota)
    (tmp_path / "own").write_text("3:cpu,cpuacct:/x\n")
    assert e.cgroup_cpu_quota(root, tmp_path / "own") == 0.5
    assert e.cgroup_cpu_quota(tmp_path / "none", tmp_path / "none") is None


def test_tuning_variables_are_removed_and_named_and_the_rest_stays():
    given = {
        "PATH": "/bin", "HOME": "/h", "TMPDIR": "/t", "LD_LIBRARY_PATH": "/l", "CUDA_VISIBLE_DEVICES": "1", "LANG": "C",
        "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "1", "OMP_PROC_BIND": "true", "KMP_AFFINITY": "none",
        "MKL_CBWR": "COMPATIBLE", "ORT_X": "1", "OV_CPU": "1", "ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_VERBOSE": "1",
        "TORCH_LOGS": "all", "LD_PRELOAD": "x.so", "PYTHONPATH": "/p", "PYTHONHASHSEED": "1", "ORTHODOX": "kept",
        "NVIDIA_TF32_OVERRIDE": "0", "GOMP_SPINCOUNT": "9", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "8",
    }  # fmt: skip
    env, removed = e.scrubbed_environment(3, given)
    kept = {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "LANG", "PYTHONHASHSEED", "ORTHODOX"}
    assert {k: env[k] for k in kept} == {k: given[k] for k in kept}
    assert set(removed) == set(given) - kept
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == env["OPENBLAS_NUM_THREADS"] == "3"
    assert (env["PYTHONUTF8"], env["PYTHONSAFEPATH"]) == ("1", "1")
    assert not {k for k in set(env) - kept if k in given} - {"OMP_NUM_THREADS"}


def test_every_variable_that_decides_over_the_precision_is_named_with_its_value_and_taken_from_workers():
    for name in e.PRECISION_VARIABLES:
        given = {name: "1", "PATH": "/bin"}
        (words,) = e.precision_overrides(given)
        assert words.startswith(f"{name}=1 is set and ")
        assert words.endswith("workers are started without it, --fp32 decides")
        assert name not in e.scrubbed_environment(1, given)[0]
        assert e.seen_variables(given) == {name: "1"}
    assert e.precision_overrides({"PATH": "/bin"}) == []


def test_both_onnxruntime_packages_are_a_conflict_with_a_way_out(tmp_path, monkeypatch):
    for name in ("onnxruntime", "onnxruntime_gpu"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = e.conflicting_distributions()
    assert "onnxruntime and onnxruntime-gpu are both installed" in found
    assert "pip uninstall" in found


def test_one_onnxruntime_package_is_no_conflict():
    assert e.conflicting_distributions(["onnxruntime", "numpy"]) == []
    assert e.conflicting_distributions(["onnxruntime-gpu"]) == []


def test_timed_workers_share_the_highest_core_and_no_sibling_before_every_core_is_used(tmp_path, monkeypatch):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(e, "affinity", lambda: [0, 1, 2, 3])
    assert e.timing_cpus(1, tmp_path) == [3]
    assert e.timing_cpus(2, tmp_path) == [2, 3]
    assert e.timing_cpus(3, tmp_path) == [1, 2, 3]
    assert e.timing_cpus(4, tmp_path) is None


def _package(root, name, file="__init__.py"):
    target = root / name / file if file == "__init__.py" else root / f"{name}.py"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    return target


@pytest.mark.parametrize("file", ["__init__.py", "module"])
def test_a_folder_or_file_that_hides_an_installed_package_is_named(tmp_path, file):
    installed = _package(tmp_path / "site-packages", "onnx")
    mine = _package(tmp_path / "work", "onnx", file)
    (sentence,) = e.shadowed_packages([str(tmp_path / "work"), str(tmp_path / "site-packages")])
    assert sentence.startswith(f"{mine} hides the installed package onnx ({installed}); rename it")


def test_what_hides_nothing_is_not_named(tmp_path):
    _package(tmp_path / "site-packages", "onnx")
    (tmp_path / "work" / "onnx").mkdir(parents=True)  # no __init__.py: Python prefers the installed one
    _package(tmp_path / "work", "torch")  # nothing is hidden: no torch is installed
    _package(tmp_path / "work", "helpers")
    assert e.shadowed_packages([str(tmp_path / "work"), str(tmp_path / "site-packages")]) == []
    assert e.shadowed_packages([str(tmp_path / "site-packages"), str(tmp_path / "work")]) == []


def test_a_folder_named_onnx_where_python_starts_is_found(tmp_path):
    mine = _package(tmp_path, "onnx")
    code = "from attnbench.measure.environment import shadowed_packages as s; print(*s())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{mine} hides the installed package onnx")
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_nvidias_driver_and_gpus_are_read_from_its_files(tmp_path):
    version = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
    )
    (tmp_path / "version").write_text(version)
    card = tmp_path / "gpus" / "0000:19:00.0" / "information"
    card.parent.mkdir(parents=True)
    card.write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 261\nVideo BIOS: \t 96.00.bc\n")
    assert e.nvidia_driver(tmp_path) == "580.65.06"
    assert e.nvidia_gpus(tmp_path) == ["NVIDIA H200"]
    assert e.nvidia_driver(tmp_path / "none") is None
    assert e.nvidia_gpus(tmp_path / "none") == []
