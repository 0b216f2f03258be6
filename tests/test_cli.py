import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench import __version__, api, console, selftest
from attnbench.errors import InputError, ReadBackError, UnavailableError
from tests.conftest import Call, assert_one_sentence, record


def attnbench(*argv: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The installed command, as a person starts it."""
    command = Path(sys.executable).with_name("attnbench")
    return subprocess.run([command, *argv], capture_output=True, text=True, timeout=60, check=False, **settings)


def test_help_groups_the_commands_by_question(run: Callable[..., Call]) -> None:
    code, out, _ = run("--help")
    assert code == 0
    places = [
        out.index(text)
        for text in ("Is my machine right", "doctor", "Is the instrument right", "selftest", "Compare runtimes")
    ]
    assert places == sorted(places)


def test_no_arguments_show_the_help(run: Callable[..., Call]) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "Usage: attnbench" in out


def test_version_is_the_package_version(run: Callable[..., Call]) -> None:
    assert run("--version") == (0, f"attnbench {__version__}\n", "")


def test_list_shows_every_plugin_with_its_distribution(run: Callable[..., Call]) -> None:
    code, out, _ = run("list")
    assert code == 0
    assert re.search(
        rf"^  ort-cpu +attnbench {re.escape(__version__)}  attnbench_runtimes.ort:OrtCpu$", out, re.MULTILINE
    )
    assert out.index("exporters") < out.index("onnx-contrib") < out.index("runtimes") < out.index("torch-sdpa")


def test_list_as_json_is_json(run: Callable[..., Call]) -> None:
    listed = json.loads(run("list", "--json")[1])
    names = {kind: [plugin["name"] for plugin in found] for kind, found in listed.items()}
    assert "onnx-attention" in names["exporters"]
    assert "null" in names["runtimes"]


def test_flags_reach_the_api_as_values(run: Callable[..., Call], benched: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "käse 东"
    argv = shlex.split(
        "bench quick --variants self,causal --part core -s 128,512 -s 1024 --kv-lens 64 -b 1,8 --heads 4 --head-dim 32 "
        "--dtypes fp32,bf16 --exporters onnx-attention --runtimes ort-cpu,torch-sdpa --opset 23,24 "
        "--baseline torch-sdpa --gpu-workers one-at-a-time --fp32 default "
        "--threads 2 --time-budget 5m --timeout 60s --memory-limit 8GiB --seed 7 --require onnx-attention@ort-cpu "
        "--no-oom-skip -q -o"
    )
    code, text, _ = run(*argv, str(out))
    assert code == 1
    assert text.endswith(f"cases: 2 ok, 1 mismatch\nnote: look here\nreport: {Path('results/x/report.html')}\n")
    assert "attention@ort-cpu" in text
    assert max(map(len, text.splitlines())) <= 80
    for name in ("progress", "command", "on_plan"):
        benched.pop(name)
    assert benched == {
        "sweep": "quick", "variants": ["self", "causal"], "part": ["core"], "seq_lens": [128, 512, 1024],
        "kv_lens": [64], "batch_sizes": [1, 8], "num_heads": [4], "head_dims": [32], "dtypes": ["fp32", "bf16"],
        "exporters": ["onnx-attention"], "runtimes": ["ort-cpu", "torch-sdpa"], "opset": [23, 24],
        "baseline": "torch-sdpa", "gpu_workers": "one-at-a-time", "fp32": "default", "threads": 2,
        "time_budget_s": 300.0, "timeout_s": 60.0,
        "memory_limit_bytes": 8 << 30, "seed": 7, "require": ["onnx-attention@ort-cpu"], "oom_skip": False, "out": out,
    }  # fmt: skip
    assert not out.exists()


def test_flags_that_were_not_given_are_left_to_the_sweep(run: Callable[..., Call], benched: dict[str, Any]) -> None:
    run("bench", "-q")
    assert set(benched) == {"progress", "command", "on_plan"}


def test_the_command_is_kept_so_that_it_can_be_typed_again(run: Callable[..., Call], benched: dict[str, Any]) -> None:
    run("bench", "my sweep.toml", "-q", "-s", "16")
    assert benched["command"] == "attnbench bench 'my sweep.toml' -q -s 16"


def test_bench_as_json_names_the_report_and_the_exit_code(run: Callable[..., Call], benched: dict[str, Any]) -> None:
    told = json.loads(run("bench", "--json", "-q")[1])
    assert told["statuses"] == {"ok": 2, "mismatch": 1}
    assert (told["exit_code"], told["run_dir"]) == (1, str(Path("results/x")))


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ("-s 0", ["--seq-lens must be a whole number of at least 1, got '0'", "--seq-lens 128,512"]),
        ("-s=-5", ["--seq-lens must be a whole number of at least 1, got '=-5'"]),
        ("-s -5", ["--seq-lens", "got '-5'"]),
        ("-s 1e5", ["got '1e5'"]),
        ("-s 1_000", ["got '1_000'"]),
        ("-s ١٢", ["--seq-lens must be a whole number"]),
        ("-s 128,,256", ["--seq-lens must be values with commas between, got '128,,256'"]),
        ("-s 128,128", ["--seq-lens has '128' twice"]),
        ("-s 128 -s 0128", ["--seq-lens has 128 twice"]),
        ("-s 99999999999999999999999", ["at least 1, got '99999999999999999999999'"]),
        ("-s 1000000000", ["2048000000000 bytes", "use a smaller T"]),
        ("-b 1000000000", ["bytes", "batch"]),
        ("--kv-lens 0", ["--kv-lens must be a whole number of at least 1"]),
        ("-b 0", ["--batch-sizes"]),
        ("--heads 0", ["--num-heads must be a whole number of at least 1, got '0'"]),
        ("--head-dim -1", ["--head-dims must be a whole number of at least 1, got '-1'"]),
        ("--variants selfe", ["no value 'selfe'; known: self, cross, causal, decode; did you mean 'self'?"]),
        ("--part blok", ["did you mean 'block'?"]),
        ("--gpu-workers alone", ["--gpu-workers: no value 'alone'; known: auto, parked, one-at-a-time"]),
        ("--dtypes fp23", ["known: fp32, fp16, bf16"]),
        ("--runtimes ort-cpuu", ["no runtime 'ort-cpuu'; installed: null", "did you mean 'ort-cpu'?"]),
        ("--exporters onnx-atention", ["no exporter 'onnx-atention'", "did you mean 'onnx-attention'?"]),
        ("--baseline torch-spda", ["did you mean 'torch-sdpa'?"]),
        ("--baseline torch-sdpa,ort-cpu", ["--baseline takes one value, got 2"]),
        ("--require onnx-attention@ort-cuda9", ["no runtime 'ort-cuda9'"]),
        ("--require onnx-atention@ort-cpu", ["no exporter 'onnx-atention'"]),
        ("--opset 23.5", ["--opset must be a whole number"]),
        ("--threads 0", ["--threads must be a whole number between 1 and 4096, got '0'"]),
        ("--seed -1", ["--seed must be a whole number of at least 0, got '-1'"]),
        ("--time-budget 5parsecs", ["--time-budget", "'5parsecs'", "90s, 5m"]),
        ("--time-budget 0s", ["--time-budget must be above 0, got '0s'"]),
        ("--timeout=-3s", ["--timeout", "'-3s'"]),
        ("--memory-limit 8GiBB", ["--memory-limit", "'8GiBB'", "8GiB"]),
        ("--memory-limit 0", ["--memory-limit must be above 0, got '0'"]),
        ("quik", ["no sweep 'quik'", "did you mean 'quick'?"]),
        ("no/such/file.toml", ["'no/such/file.toml'"]),
        ("--no-such-flag", ["No such option: --no-such-flag", "see attnbench bench --help"]),
        ("quick default", ["see attnbench bench --help"]),
        ("--variants self --kv-lens 64", ["kv_lens", "cross"]),
        ("-s", ["requires an argument", "see attnbench --help"]),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_written(
    run: Callable[..., Call], argv: str, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(run("bench", *argv.split()), *parts)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_reaches_the_plan_without_an_output_folder(
    run: Callable[..., Call], benched: dict[str, Any], tmp_path: Path
) -> None:
    assert_one_sentence(run("bench", "-s", "16", "--dry-run", "-o", str(tmp_path / "new")), "this plan goes no further")
    assert benched == {"seq_lens": [16]}


def test_export_passes_one_problem_on(
    run: Callable[..., Call], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def export(**arguments: Any) -> SimpleNamespace:
        seen.update(arguments)
        return SimpleNamespace(
            path=arguments["out"],
            exporter="onnx-attention",
            opset=24,
            size_bytes=12,
            sha256="ab",
            operators={"Attention": 1},
            verified="ort-cpu at T = 1, 5, 33",
        )

    monkeypatch.setattr(api, "export", export)
    out = tmp_path / "a b.onnx"
    argv = ("export", "--exporter", "onnx-attention", "--variant", "causal", "--opset", "24", "-o", str(out))
    code, text, _ = run(*argv)
    assert code == 0
    assert f"path        {out}" in text
    assert json.loads(run(*argv, "--json")[1])["operators"] == {"Attention": 1}
    assert seen == {
        "exporter": "onnx-attention", "variant": "causal", "opset": 24, "seed": 0, "out": out,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ("--exporter onnx-contrib", "Missing option"),
        ("--exporter nope -o x.onnx", "no exporter 'nope'"),
        ("--exporter onnx-contrib -o .", "--out must be a file"),
        ("--exporter onnx-contrib -o /dev/null", "is a device or pipe"),
        ("--exporter onnx-contrib -o x.onnx/", "leave the last / out"),
        ("--exporter onnx-contrib -o x.onnx --opset=", "--opset must be values"),
        ("--exporter onnx-contrib -o no/such/x.onnx", "a folder that exists"),
        ("--exporter onnx-contrib,onnx-attention -o x.onnx", "--exporter takes one value, got 2"),
        ("--exporter onnx-contrib -o x.onnx --num-heads 4,8", "--num-heads takes one value, got 2"),
        ("--exporter onnx-contrib -o x.onnx --dtype fp64", "known: fp32"),
    ],
)
def test_bad_input_of_export_is_one_sentence(
    run: Callable[..., Call], argv: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(run("export", *argv.split()), part)
    assert list(tmp_path.iterdir()) == []


def test_report_rebuilds_a_run_and_shows_it(
    run: Callable[..., Call], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").touch()
    rebuilt: list[Path] = []

    def rebuild(path: Path) -> SimpleNamespace:
        rebuilt.append(path)
        return SimpleNamespace(
            path=path, rows=[record("timeout", 128)], manifest={}, notices=[], exit_code=1, is_reported=True
        )

    monkeypatch.setattr(api, "rebuild_report", rebuild)
    code, out, _ = run("report", str(tmp_path))
    assert (code, rebuilt) == (0, [tmp_path])
    assert out.endswith(f"cases: 1 timeout\nreport: {tmp_path / 'report.html'}\n")


def test_selftest_tells_its_steps_on_stderr_and_its_result_on_stdout(
    run: Callable[..., Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    def instrument(tell: Callable[[str], object]) -> SimpleNamespace:
        tell("noise")
        return SimpleNamespace(exit_code=1, text=lambda: "one table", as_dict=lambda: {"checks": []})

    monkeypatch.setattr(selftest, "run", instrument)
    assert run("selftest") == (1, "one table\n", "noise\n")
    assert json.loads(run("selftest", "--json")[1]) == {"checks": []}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("no"), 2),
        (UnavailableError("no GPU"), 3),
        (ReadBackError("asked 1 thread,\ngot 2"), 1),
        (OSError(28, "No space left on device"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    run: Callable[..., Call], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def bench(**arguments: Any) -> None:
        raise error

    monkeypatch.setattr(api, "bench", bench)
    got, out, err = run("bench", "-q")
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert "Traceback" not in err


def test_an_unknown_command_is_answered_with_the_nearest(run: Callable[..., Call]) -> None:
    assert_one_sentence(run("benhc"), "No such command 'benhc'", "bench")


def test_a_closed_pipe_is_no_error() -> None:
    command = Path(sys.executable).with_name("attnbench")
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" list | true; "$0" list | head -n 1; "$0" bench --help | head -n 1; "$0" list >&-',
         command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""


def test_ascii_output_is_safe_and_plain_without_a_terminal(tmp_path: Path) -> None:
    plain = {"PATH": os.environ["PATH"], "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = attnbench("bench", "-o", str(tmp_path / "Käse" / "a\nb"), env=plain)
    assert done.returncode == 2
    assert "K\\xe4se" in done.stderr
    listed = attnbench("list", env=plain)
    assert listed.returncode == 0
    assert "\x1b" not in listed.stdout
    helped = attnbench("--help", env=plain)
    assert helped.returncode == 0
    assert helped.stdout.isascii()
    assert max(map(len, helped.stdout.splitlines())) <= 80


@pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colors_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], colored: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as screen, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", screen)
        assert console.color() is colored
        assert console.width() >= 40
    os.close(controller)
    assert console.color() is False
    assert console.width() == 80
