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
