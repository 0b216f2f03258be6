"""A bundle.json made to hang, to fill memory, to crash or to paint the terminal is refused with a sentence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from attnbench.deploy import verify, verify_bundle
from attnbench.deploy.verify_runtimes import CHANGED, Fault
from tests.deploy.bundles import edit


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere.json")
    path.symlink_to(path.parent.parent / "elsewhere.json")


def make_huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


SPOILT = {
    "pipe": (replace_by_pipe, "bundle.json is not a file"),
    "link": (replace_by_link, "bundle.json is a symbolic link"),
    "huge": (make_huge, "bundle.json has over 4,194,304 bytes"),
    "deep": (lambda path: path.write_text("[" * 200_000 + "]" * 200_000), "bundle.json is damaged"),
    "twice": (lambda path: path.write_text('{"model": "x",' + path.read_text()[1:]), "a name occurs twice"),
    "nan": (lambda path: path.write_text('{"limit": NaN}'), "NaN is no number of JSON"),
    "list": (lambda path: path.write_text("[]"), "bundle.json was changed"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILT.values(), ids=SPOILT)
def test_a_hostile_bundle_json_is_refused(ort_bundle: Path, copy: Any, spoil: Any, words: str) -> None:
    folder = copy(ort_bundle)
    spoil(folder / "bundle.json")
    found = verify.verify(folder)
    assert (found.exit_code, words in found.sentence) == (CHANGED, True), found.sentence
    with pytest.raises(Fault, match=words):  # verify.py in the bundle is this code
        verify_bundle.read_checked(folder)


def no_settings(fields: dict[str, Any]) -> None:
    del fields["runtime"]["settings"]


LIES: dict[str, Any] = {
    "no settings": no_settings,
    "settings": lambda fields: fields["runtime"].update(settings=["threads"]),
    "options": lambda fields: fields["runtime"]["settings"].update(provider_options=5),
    "threads": lambda fields: fields["runtime"]["settings"].update(threads=1_000_000),
    "module": lambda fields: fields["runtime"].update(module=["os"]),
    "distribution": lambda fields: fields["runtime"].update(distribution="\x1b]0;x\x07\nright: 9 cases"),
    "version": lambda fields: fields["runtime"].update(version="1\nright: 9 cases"),
    "input": lambda fields: fields["inputs"][0].update(name="x\u202e"),
    "file": lambda fields: fields["files"].update({"a\nright: 9 cases": {"sha256": "0" * 64, "size_bytes": 0}}),
    "nul": lambda fields: fields["files"].update({"a\0b": {"sha256": "0" * 64, "size_bytes": 0}}),
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES)
def test_what_bundle_json_says_of_the_runtime_and_names_is_checked(ort_bundle: Path, copy: Any, change: Any) -> None:
    folder = copy(ort_bundle)
    edit(folder, change)
    found = verify.verify(folder)
    assert found.exit_code == CHANGED
    assert all(line.isprintable() for line in found.lines())


def test_words_of_a_runtime_cannot_steer_the_terminal() -> None:
    found = verify.Verification(exit_code=5, sentence="no \x1b[31mnode\x1b[0m 'a\u202eb'\nright: 9 cases")
    assert found.lines() == [r"cannot load: no \x1b[31mnode\x1b[0m 'a\u202eb'\nright: 9 cases"]


def test_lines_of_good_text_stay_as_they_are() -> None:
    assert verify.Verification(exit_code=0, sentence="Größe 5 µm").lines() == ["right: Größe 5 µm"]


def test_attnbench_looks_for_data_that_is_not_listed_without_reading_the_model_whole(
    ort_bundle: Path, copy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(ort_bundle)
    (folder / "more.data").write_bytes((folder / "model.onnx.data").read_bytes())
    edit(folder, lambda fields: fields["files"].pop("model.onnx.data"))
    monkeypatch.setattr(verify_bundle, "check_external", lambda *_: pytest.fail("read whole"))
    found = verify.verify(folder)
    assert (found.exit_code, "asks for the file 'model.onnx.data'" in found.sentence) == (CHANGED, True)


def test_the_manifest_of_a_bundle_is_plain_json(ort_bundle: Path) -> None:
    text = (ort_bundle / "bundle.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=lambda text: pytest.fail(text))
