"""`attnbench export --target` and `attnbench verify` as they are typed."""

import json
import shutil

import pytest

from tests.conftest import assert_one_sentence
from tests.deploy.bundles import run_verify


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ("export -o x", ["needs --exporter NAME for one file, or --target TARGET"]),
        ("export --exporter onnx-attention --recipe auto -o x.onnx", ["--recipe is for a bundle; add --target"]),
        ("export --exporter onnx-attention --max-len 64 -o x.onnx", ["--max-len is for a bundle"]),
        ("export --exporter onnx-attention --triton -o x.onnx", ["--triton is for a bundle; add --target"]),
        ("export --target tensorrt-rtx --gpu-archs sm90 -o x", ["--gpu-archs must be of sm75", "got 'sm90'"]),
        ("export --target torch --exporter onnx-attention -o x", ["--exporter is for one file"]),
        ("export --target trt -o x", ["no target 'trt'; there are onnxruntime-cpu"]),
        ("export --target tensorrt --recipe onnx-blocked -o x", ["no recipe 'onnx-blocked'; it has documented, auto"]),
        ("export --target torch --max-len 0 -o x", ["--max-len must be a whole number of at least 1, got '0'"]),
        ("export --target torch --max-len 9 -o x", ["--max-len must be at least 17, got 9"]),
        ("export --target torch --max-len 10000000 -o x", ["use a smaller one"]),
        ("export --target torch --heads 0 -o x", ["--num-heads", "got '0'"]),
        ("export --target torch -o no/such/x", ["must lie in a folder that exists"]),
        ("export --target torch -o taken", ["must be a folder for a bundle, but 'taken' is a file"]),
        ("verify nowhere", ["'nowhere' is none"]),
        ("verify . --option fast", ["--options must be KEY=VALUE, got 'fast'"]),
        ("verify . --memory-limit 0", ["--memory-limit"]),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(run, argv, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    assert_one_sentence(run(*argv.split()), *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_bundle_for_cuda_says_what_was_not_run(run, tmp_path):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "cuda"
    asked = ["--target", "onnxruntime-cuda", "--part", "core", "--heads", "2", "--head-dim", "8", "--max-len", "20"]
    code, told, _ = run("export", *asked, "--recipe", "onnx-attention", "-o", str(out))
    assert code == 0
    assert "passed   golden cases: 6 cases in onnxruntime" in told
    assert "passed   mask semantics: 1 probe conforms in onnxruntime" in told
    assert "Verify it where onnxruntime-cuda has a device: python " in " ".join(told.split())
    unrun = next(line for line in told.splitlines() if line.startswith("not run  golden cases in onnxruntime-cuda: "))
    assert "was run by onnxruntime" in unrun
    assert unrun.removeprefix("not run  ") in (out / "README.md").read_text(encoding="utf-8")
    settings = json.loads((out / "bundle.json").read_bytes())["runtime"]["settings"]
    assert settings["providers"] == ["CUDAExecutionProvider"]
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        code, told, _ = run("verify", str(out))
        assert (code, told.startswith("cannot load: onnxruntime")) == (5, True)
    option = "providers=CPUExecutionProvider"
    assert f"`--option {option}`" in (out / "README.md").read_text(encoding="utf-8")
    assert run_verify(out, "--option", option).returncode == 0


def test_a_bundle_verifies_and_a_changed_one_has_its_code(run, ort_bundle, copy):
    out = copy(ort_bundle)
    code, told, _ = run("verify", str(out), "--json")
    assert (code, json.loads(told)["exit_code"], len(json.loads(told)["cases"])) == (0, 0, 6)
    shutil.copy(out / "golden" / "batch2-seq17-normal.npz", out / "golden" / "batch2-seq17-peaked.npz")
    code, told, _ = run("verify", str(out))
    assert code == 4
    assert told.startswith("changed: golden/batch2-seq17-peaked.npz was changed")
    (out / "golden" / "batch2-seq17-peaked.npz").unlink()
    assert run("verify", str(out))[0] == 4


def test_on_a_terminal_every_line_fits_and_elsewhere_a_case_is_one_line(run, ort_bundle, monkeypatch):
    code, piped, _ = run("verify", str(ort_bundle))
    assert code == 0
    assert len(piped.splitlines()) == 8
    monkeypatch.setattr("attnbench.console.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    code, shown, _ = run("verify", str(ort_bundle))
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 60
    assert len(shown.splitlines()) > 8
    assert " ".join(shown.split()) == " ".join(piped.split())


def test_a_folder_that_is_no_bundle_is_told_apart(run, tmp_path):
    code, told, _ = run("verify", str(tmp_path))
    assert (code, told) == (4, "changed: bundle.json is missing: No such file or directory\n")
