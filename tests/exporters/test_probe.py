"""torch installs neither onnx nor onnxscript: what is missing or too old is named, with the command that helps."""

import importlib.metadata
import sys

import pytest

from attnbench_exporters.attention import OnnxAttention
from attnbench_exporters.contrib import OnnxContrib
from attnbench_exporters.decomposed import OnnxDecomposed

TORCH_EXPORTERS = [OnnxDecomposed(), OnnxAttention()]


def pretend(monkeypatch: pytest.MonkeyPatch, package: str, version: str | None) -> None:
    real = importlib.metadata.version

    def version_of(name: str) -> str:
        if name != package:
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", version_of)


@pytest.mark.parametrize("exporter", [*TORCH_EXPORTERS, OnnxContrib()], ids=lambda e: e.name)
def test_a_complete_environment_is_available(exporter: OnnxContrib) -> None:
    probe = exporter.probe()
    assert (probe.available, probe.reason) == (True, "")
    assert probe.version


@pytest.mark.parametrize("exporter", TORCH_EXPORTERS, ids=lambda e: e.name)
def test_a_missing_onnxscript_is_named_with_its_command(
    exporter: OnnxDecomposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "onnxscript", None)
    probe = exporter.probe()
    assert not probe.available
    assert "onnxscript is not installed" in probe.reason
    assert "pip install 'onnxscript>=0.6'" in probe.fix


@pytest.mark.parametrize("version", ["0.5.7", "0.5.0.dev20250101", "0.1"])
def test_an_onnxscript_below_the_minimum_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "onnxscript", version)
    probe = OnnxDecomposed().probe()
    assert not probe.available
    assert probe.reason == f"onnxscript {version} is too old; at least 0.6 is needed"


@pytest.mark.parametrize("version", ["0.6", "0.10.1", "1.0.0rc1", "0.7.2+local"])
def test_versions_are_compared_as_numbers(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "onnxscript", version)
    assert OnnxDecomposed().probe().available


def test_a_package_that_does_not_import_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    probe = OnnxAttention().probe()
    assert not probe.available
    assert "onnxscript cannot be imported" in probe.reason


def test_contrib_needs_no_onnxscript(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "onnxscript", None)
    assert OnnxContrib().probe().available
