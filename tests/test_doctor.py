import json
from dataclasses import replace
from typing import Any

import pytest

from attnbench import cli, doctor
from attnbench.interfaces import Probe
from attnbench.measure import environment

WORKS = Probe(available=True, version="1.2")
BROKEN = Probe(available=False, reason="libcuda.so.1 is missing", fix="apt install nvidia-driver")


def seen(**changed: Any) -> dict[str, Any]:
    """A quiet machine, with changes."""
    return {
        **environment.describe(),
        "conflicts": [],
        "shadowed": [],
        "variables": {},
        "load_average": [0.0, 0.0, 0.0],
        "memory": {"total_bytes": 64 << 30, "available_bytes": 60 << 30},
        **changed,
    }


def diagnosis(environment: dict[str, Any], runtimes: dict[str, Probe]) -> doctor.Diagnosis:
    exporters = {"onnx-attention": WORKS}
    return doctor.Diagnosis(
        environment=environment,
        exporters=exporters,
        runtimes=runtimes,
        findings=doctor.find_faults(environment, exporters, runtimes),
    )


def test_a_quiet_machine_where_something_works_is_right() -> None:
    found = diagnosis(seen(), {"null": WORKS, "ort-cpu": WORKS, "ort-cuda": BROKEN})
    assert found.findings == []
    assert found.exit_code == 0


def test_a_machine_where_only_null_works_is_not_right() -> None:
    found = diagnosis(seen(), {"null": WORKS, "ort-cpu": BROKEN})
    assert found.exit_code == 1
    assert "no runtime works here" in found.findings[0].text


def test_no_exporter_is_a_fault() -> None:
    faults = doctor.find_faults(seen(), {"onnx-attention": BROKEN}, {"torch-sdpa": WORKS})
    assert [fault.severe for fault in faults] == [True]


def test_two_onnxruntimes_are_a_fault_that_names_both_and_the_way_out() -> None:
    conflicts = environment.conflicting_distributions(["onnxruntime", "onnxruntime-gpu"])
    found = diagnosis(seen(conflicts=conflicts), {"ort-cpu": WORKS})
    assert found.exit_code == 1
    assert "onnxruntime and onnxruntime-gpu" in found.findings[0].text
    assert "pip uninstall" in found.findings[0].text


def test_a_folder_that_hides_a_package_is_a_fault() -> None:
    found = diagnosis(seen(shadowed=["/here/onnx/__init__.py hides the installed package onnx"]), {"ort-cpu": WORKS})
    assert found.exit_code == 1
    assert "hides the installed package onnx" in found.findings[0].text


def test_a_runtime_says_where_it_runs_and_why_not_on_a_gpu() -> None:
    here = Probe(available=True, version="2.13", devices=("cuda:0", "cpu"))
    cpu = Probe(available=True, version="2.13", no_cuda="torch 2.13 was built without CUDA")
    only = Probe(available=True, version="1.7", compiles_only="there is no NVIDIA driver, so it compiles")
    runtimes = {"torch-sdpa": here, "torch-eager": cpu, "tensorrt-rtx": only}
    text = doctor.render(diagnosis(seen(), runtimes), width=80, color=False)
    assert "there is no NVIDIA driver, so it compiles" in text
    assert "available  2.13  on cuda:0, cpu" in text
    assert "only on the CPU: torch 2.13 was built without CUDA" in text


@pytest.mark.parametrize(
    ("nvidia", "words"),
    [
        ({"driver": None, "gpus": []}, "none: no NVIDIA driver is loaded"),
        ({"driver": "580.65.06", "gpus": ["NVIDIA H200"]}, "NVIDIA H200, NVIDIA driver 580.65.06"),
        ({"driver": "580.65.06", "gpus": []}, "none visible, NVIDIA driver 580.65.06"),
    ],
)
def test_the_machine_tells_of_its_gpus(nvidia: dict[str, Any], words: str) -> None:
    text = doctor.render(diagnosis(seen(nvidia=nvidia), {"ort-cpu": WORKS}), width=80, color=False)
    assert ["gpus", words] in [line.split(maxsplit=1) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (
            {"variables": {"OPENBLAS_CORETYPE": "Haswell"}},
            "OPENBLAS_CORETYPE=Haswell is set and can halve NumPy's speed",
        ),
        ({"variables": {"OMP_NUM_THREADS": "4"}}, "OMP_NUM_THREADS=4 is set; workers ignore it"),
        ({"load_average": [999.0, 1.0, 1.0]}, "load average 999.0 on"),
        ({"memory": {"total_bytes": 4 << 30, "available_bytes": 1 << 30}}, "1.0 GiB of memory is free"),
    ],
)
def test_what_disturbs_a_measurement_is_a_note_and_no_fault(changed: dict[str, Any], part: str) -> None:
    found = diagnosis(seen(**changed), {"ort-cpu": WORKS})
    assert found.exit_code == 0
    assert [part in finding.text for finding in found.findings] == [True]


def test_what_the_system_does_not_tell_is_unknown() -> None:
    blind = seen(load_average=None, memory={"total_bytes": None, "available_bytes": None})
    found = diagnosis(blind, {"ort-cpu": WORKS})
    assert found.findings == []
    assert "unknown, unknown free" in doctor.render(found, width=80, color=False)


def test_the_text_is_80_columns_and_says_why_and_how_to_fix() -> None:
    found = diagnosis(seen(variables={"OPENBLAS_CORETYPE": "x"}), {"ort-cpu": WORKS, "tensorrt": BROKEN})
    text = doctor.render(found, width=80, color=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    assert ["tensorrt", "unavailable: libcuda.so.1 is missing"] in lines
    assert ["fix:", "apt install nvidia-driver"] in lines
    assert ["ort-cpu", "available  1.2"] in lines


def test_what_no_run_takes_by_itself_is_named_with_its_own_flag() -> None:
    opt_in = Probe(available=True, version="1.2", traits={"opt_in": True})
    checks = Probe(available=True, version="1.2", traits={"opt_in": True, "checks_only": True})
    found = replace(diagnosis(seen(), {"slow": opt_in, "checker": checks}), exporters={"onnx-old": opt_in})
    lines = [line.split("  ", 2) for line in doctor.render(found, width=80, color=False).splitlines()]
    said = {parts[1]: parts[2].strip() for parts in lines if len(parts) == 3}
    assert said["slow"] == "available  1.2  (opt-in: name it with --runtimes)"
    assert said["checker"] == "available  1.2  (for attnbench conform; never timed)"
    assert said["onnx-old"] == "available  1.2  (opt-in: name it with --exporters)"


def test_colors_are_used_when_asked() -> None:
    assert "\x1b[" in doctor.render(diagnosis(seen(), {"ort-cpu": WORKS}), width=80, color=True)


def test_names_with_brackets_are_shown_as_they_are() -> None:
    odd = Probe(available=False, reason="needs [bold]all[/bold] of it")
    assert "needs [bold]all[/bold] of it" in doctor.render(diagnosis(seen(), {"odd": odd}), width=80, color=False)


def test_the_command_prints_json_and_gives_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diagnosis(seen(), {"ort-cpu": BROKEN})
    monkeypatch.setattr(doctor, "diagnose", lambda: found)
    assert cli.main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["runtimes"]["ort-cpu"]["fix"] == "apt install nvidia-driver"
    assert told["exit_code"] == 1
    assert cli.main(["doctor"]) == 1
    assert "ort-cpu" in capsys.readouterr().out


def test_every_installed_plugin_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def probe_all(kind: str, timeout_s: float) -> dict[str, Probe]:
        asked.append(kind)
        return {"it": WORKS}

    monkeypatch.setattr(doctor.plugins, "probe_all", probe_all)
    assert doctor.diagnose().runtimes == {"it": WORKS}
    assert sorted(asked) == ["exporter", "runtime"]
