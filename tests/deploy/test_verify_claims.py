"""What a bundle says of itself with right hashes, to be believed: `attnbench verify` makes it again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import bundles
from attnbench.deploy.verify_claims import claims_here
from attnbench.sweep.repro import as_npz
from tests.deploy.bundles import edit, run_verify, update_hash

Fields = dict[str, Any]
Change = Callable[[Fields], object]


def faults_of(folder: Path, *, same_numpy: bool = True) -> list[str]:
    fields = json.loads((folder / "bundle.json").read_bytes())
    found = claims_here(folder=str(folder), problem=fields["problem"], seed=fields["seed"], same_numpy=same_numpy)
    return list(found["faults"])


@pytest.mark.parametrize("bundle", ["ort_bundle", "openvino_bundle", "torch_bundle"])
def test_a_bundle_as_it_was_made_claims_what_is_found_again(request: pytest.FixtureRequest, bundle: str) -> None:
    assert faults_of(request.getfixturevalue(bundle)) == []


def limits_of(number: float) -> Change:
    return lambda fields: [case["limits"].update(y=number) for case in fields["golden"]]


def no_gain(fields: Fields) -> None:
    fields["golden"][0]["gain_limits"].clear()


def drop_the_longest(fields: Fields) -> None:
    """The case whose T is the largest of the ranges, with its file."""
    fields["golden"] = [case for case in fields["golden"] if case["file"] != "golden/batch1-seq48-peaked.npz"]
    fields["files"].pop("golden/batch1-seq48-peaked.npz")


def other_heads(fields: Fields) -> None:
    """Inputs and weights have the same shapes."""
    fields["problem"].update(num_heads=2, num_kv_heads=2, head_dim=16)


LIES: dict[str, tuple[Change, str]] = {
    "limits": (limits_of(1e9), "allows y to be off by 1e+09, the rule gives"),
    "limits above the rule": (limits_of(1e-3), "allows y to be off by 0.001, the rule gives"),
    "no gain": (no_gain, "allows y to be scaled by inf, the rule gives"),
    "dropped case": (drop_the_longest, "has no case batch1-seq48-peaked, which proves its ranges"),
    "larger range": (lambda fields: fields["ranges"].update(seq_len=[1, 64]), "has no case batch1-seq64-normal"),
    "another problem": (other_heads, "expects y to be what attention"),
    "another seed": (lambda fields: fields.update(seed=4), "has other inputs than seed 4 draws"),
}


@pytest.mark.parametrize(("change", "words"), LIES.values(), ids=LIES)
def test_a_lie_in_bundle_json_is_told(ort_bundle: Path, copy: Any, change: Change, words: str) -> None:
    folder = copy(ort_bundle)
    edit(folder, change)
    assert any(words in fault for fault in faults_of(folder)), faults_of(folder)


def rewrite(folder: Path, file: str, change: Callable[[dict[str, Any]], object]) -> None:
    with np.load(folder / file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    change(arrays)
    (folder / file).write_bytes(as_npz(arrays))
    update_hash(folder, file)


def test_expected_outputs_that_are_not_those_of_attention_are_told(ort_bundle: Path, copy: Any) -> None:
    folder = copy(ort_bundle)
    rewrite(folder, "golden/batch2-seq17-normal.npz", lambda arrays: arrays.update(out_y=arrays["out_y"] * 1.001))
    (fault,) = faults_of(folder)
    assert fault == "golden/batch2-seq17-normal.npz expects y to be what attention in float64 is not, by 0.001"


def test_easier_inputs_are_told_where_the_same_numpy_draws_them(ort_bundle: Path, copy: Any) -> None:
    folder = copy(ort_bundle)

    def zero(arrays: dict[str, Any]) -> None:
        arrays.update(in_x=np.zeros_like(arrays["in_x"]), out_y=np.zeros_like(arrays["out_y"]))

    rewrite(folder, "golden/batch2-seq17-normal.npz", zero)
    assert "golden/batch2-seq17-normal.npz has other inputs than seed 3 draws" in faults_of(folder)
    assert not any("other inputs" in fault for fault in faults_of(folder, same_numpy=False))


@pytest.mark.parametrize("lie", ["limits above the rule", "dropped case"])
def test_attnbench_verify_refuses_what_verify_py_has_to_believe(ort_bundle: Path, copy: Any, lie: str) -> None:
    folder = copy(ort_bundle)
    change, words = LIES[lie]
    edit(folder, change)
    found = bundles.verify(folder)
    assert found.exit_code == 4
    assert words in found.sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fields: fields.update(golden=[]), "bundle.json has no golden case"),
        (lambda fields: fields["ranges"].update(seq_len=[1, 4096]), "ranges that its golden cases do not span"),
        (lambda fields: fields["files"].pop("verify.py"), "lists no hash of 'verify.py'"),
        (lambda fields: fields["files"].pop("README.md"), "lists no hash of 'README.md'"),
        (lambda fields: fields["golden"][0]["limits"].clear(), "has no limit of y"),
        (lambda fields: fields["golden"][0]["limits"].update(y=-1), "has no limit of y"),
        (lambda fields: fields["golden"][0]["limits"].update(y="1"), "has no limit of y"),
    ],
)
def test_verify_py_itself_finds_what_contradicts_itself(
    ort_bundle: Path, copy: Any, change: Change, words: str
) -> None:
    folder = copy(ort_bundle)
    edit(folder, change)
    done = run_verify(folder)
    assert (done.returncode, done.stderr) == (4, "")
    assert words in done.stdout
    assert bundles.verify(folder).exit_code == 4


def test_a_verify_py_of_somebody_else_is_told_apart(ort_bundle: Path, copy: Any) -> None:
    assert bundles.verify(ort_bundle).notes == ()
    folder = copy(ort_bundle)
    (folder / "verify.py").write_text("print('right')\n", encoding="utf-8")
    update_hash(folder, "verify.py")
    (note,) = bundles.verify(folder).notes
    assert note.startswith("verify.py is not the one that attnbench ")


def test_files_that_are_not_the_bundles_are_named_but_do_no_harm(ort_bundle: Path, copy: Any) -> None:
    folder = copy(ort_bundle)
    (folder / "model.plan").write_bytes(b"what trtexec wrote")
    words = "not looked at, because bundle.json does not list it: model.plan"
    done = run_verify(folder)
    assert done.returncode == 0
    assert words in done.stdout
    found = bundles.verify(folder)
    assert found.exit_code == 0
    assert words in found.lines()
