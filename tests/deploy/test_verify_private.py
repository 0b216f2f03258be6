"""`attnbench verify` loads the copy that it looked at, whatever happens to the bundle meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.deploy import verify
from attnbench.deploy.verify_runtimes import CHANGED, RIGHT
from tests.deploy.bundles import edit


@pytest.mark.parametrize("name", ["model.ort", "model", "model.ONNX"])
def test_a_model_of_a_kind_that_nobody_looks_at_is_not_loaded(ort_bundle: Path, copy: Any, name: str) -> None:
    """ONNX Runtime loads its own format by the suffix .ort, and any other file as ONNX."""
    folder = copy(ort_bundle)
    (folder / "model.onnx").rename(folder / name)

    def change(fields: dict[str, Any]) -> None:
        fields["model"] = name
        fields["files"][name] = fields["files"].pop("model.onnx")

    edit(folder, change)
    found = verify.verify(folder)
    assert (found.exit_code, "no kind of model" in found.sentence) == (CHANGED, True)


def test_a_model_swapped_after_the_check_changes_nothing(
    ort_bundle: Path, copy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(ort_bundle)
    private_copy = verify._private_copy

    def copy_then_swap(*arguments: Any) -> Path:
        made = private_copy(*arguments)
        (folder / "model.onnx").write_bytes(b"something else")
        return made

    monkeypatch.setattr(verify, "_private_copy", copy_then_swap)
    assert verify.verify(folder).exit_code == RIGHT


def test_a_model_swapped_before_the_copy_is_found(ort_bundle: Path, copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy(ort_bundle)
    private_copy = verify._private_copy

    def swap_then_copy(*arguments: Any) -> Path:
        model = folder / "model.onnx"
        model.write_bytes(model.read_bytes()[::-1])
        return private_copy(*arguments)

    monkeypatch.setattr(verify, "_private_copy", swap_then_copy)
    found = verify.verify(folder)
    assert (found.exit_code, "was changed" in found.sentence) == (CHANGED, True)
