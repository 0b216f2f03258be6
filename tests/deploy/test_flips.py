"""One flipped byte of any file of any bundle is found: by its verify.py alone, and by `attnbench verify`."""

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import bundles
from attnbench.deploy import verify_bundle
from attnbench.deploy.attention import AttentionSource
from attnbench.deploy.manifest import MANIFEST, VERIFIER
from attnbench.deploy.targets import find_target
from attnbench.deploy.write import write_bundle
from attnbench.problem import Problem
from tests.deploy.bundles import names_in, run_verify, update_hash, verify_here

SMALL = Problem.make(variant="causal", seq_len=32, num_heads=2, head_dim=8)
NEEDS = {"onnxruntime-cpu": "onnxruntime", "openvino": "openvino", "torch": "torch", "tensorrt-rtx": "tensorrt_rtx"}
# Files that each target has beside those that all have.
OWN = {
    "onnxruntime-cpu": {"model.onnx", "model.onnx.data", "config.pbtxt"},
    "openvino": {"model.xml", "model.bin", "config.pbtxt"},
    "torch": {"model.pt2"},
    "tensorrt-rtx": {"model-sm89.engine", "engines.json"},
}
ALL = {"README.md", VERIFIER, MANIFEST}


@pytest.fixture(scope="module", params=NEEDS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A bundle of every target that is made here, for Triton too where it serves that."""
    target: str = request.param
    pytest.importorskip(NEEDS[target], reason=f"{NEEDS[target]} is not installed")
    out = tmp_path_factory.mktemp("flips") / "bundle"
    more: dict[str, Any] = {"gpu_archs": ("sm89",)} if target == "tensorrt-rtx" else {}
    source = AttentionSource(problem=SMALL, seed=0, max_len=17, external_bytes=1000, **more)
    write_bundle(source, find_target(target), out, with_triton="config.pbtxt" in OWN[target])
    return target, out


def flipped(folder: Path, places: Callable[[int], set[int]]) -> Iterator[tuple[str, int]]:
    """Every file with one byte changed, at several places one after the other; as it was in the end."""
    for name in names_in(folder):
        blob = (folder / name).read_bytes()
        for at in sorted(places(len(blob))):
            (folder / name).write_bytes(blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])
            yield name, at
        (folder / name).write_bytes(blob)


def ends_and_middle(size: int) -> set[int]:
    return {0, size // 3, size // 2, size - 1}


def test_a_flipped_byte_of_any_file_is_exit_code_4(bundle: tuple[str, Path]) -> None:
    target, folder = bundle
    seen = set()
    for name, at in flipped(folder, ends_and_middle):
        seen.add(name)
        code, told = verify_here(folder)
        assert code == 4, f"verify.py, {name}, byte {at}: {told}"
        found = bundles.verify(folder)
        assert found.exit_code == 4, f"attnbench verify, {name}, byte {at}: {found.sentence}"
    names = {Path(name).name for name in seen}
    assert names >= ALL | OWN[target]
    assert len([name for name in seen if name.startswith("golden/")]) == 6


def largest_more(blob: bytes) -> bytes:
    """Floats of which the largest is 1 % larger."""
    values = np.frombuffer(blob, np.float32).copy()
    values[np.abs(np.where(np.isfinite(values), values, 0)).argmax()] *= 1.01
    return values.tobytes()


def test_one_weight_of_one_percent_more_drifts_though_its_hash_is_new(
    bundle: tuple[str, Path], copy: Callable[[Path], Path]
) -> None:
    target, made = bundle
    if target == "tensorrt-rtx":
        pytest.skip("running an engine needs a GPU")
    folder = copy(made)
    weights = {"onnxruntime-cpu": "model.onnx.data", "openvino": "model.bin", "torch": "model.pt2"}[target]
    path = folder / weights
    if target == "torch":
        with zipfile.ZipFile(path) as archive:
            parts = [(info, archive.read(info)) for info in archive.infolist()]
        at = next(i for i, (info, blob) in enumerate(parts) if len(blob) == 4 * 16 * 16)
        parts[at] = (parts[at][0], largest_more(parts[at][1]))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for info, blob in parts:
                archive.writestr(info.filename, blob)
    else:
        path.write_bytes(largest_more(path.read_bytes()))
    update_hash(folder, weights)
    code, told = verify_here(folder)
    assert code == 3, told
    found = bundles.verify(folder)
    assert found.exit_code == 3, found.sentence


def test_the_shipped_script_finds_it_by_itself(bundle: tuple[str, Path]) -> None:
    """The byte of verify.py is in the text that says what it does, so that it still runs and hashes itself."""
    _, folder = bundle
    for name, at in flipped(folder, lambda size: {min(size - 1, 20)}):
        done = run_verify(folder, python=sys.executable)
        assert done.returncode == 4, f"{name}, byte {at}: {done.stdout}{done.stderr}"
        assert done.stdout.startswith("changed: ")
    assert verify_bundle.read_checked(folder)["golden"]
