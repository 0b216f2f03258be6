import re
from pathlib import Path

import pytest

from attnbench.errors import InputError, ProblemError
from attnbench.interfaces import Probe
from attnbench.problem import Problem
from attnbench.sweep import grid, runtime_options, units

TAKES = {"torch-eager": False, "torch-sdpa": False, "ort-cpu": True, "openvino": True}


def test_the_default_sweep_has_three_variants_at_six_lengths() -> None:
    found = grid.problems(grid.resolve(None, {}))
    assert [(p.variant, p.q_len) for p in found[:4]] == [("self", 128), ("cross", 128), ("causal", 128), ("self", 256)]
    assert len(found) == 18
    assert {p.part for p in found} == {"block"}


def test_cross_has_half_as_many_keys_unless_told() -> None:
    assert grid.problems(grid.resolve(None, {"variants": ("cross",), "seq_lens": (128,)}))[0].kv_len == 64
    found = grid.problems(grid.resolve(None, {"variants": ("cross",), "seq_lens": (128,), "kv_lens": (7, 9)}))
    assert [p.kv_len for p in found] == [7, 9]


def test_the_default_arms_are_those_of_the_issue_with_the_baseline_first() -> None:
    found = [a.label for a in grid.arms(grid.resolve(None, {}), TAKES)]
    assert found == [
        "torch-sdpa", "torch-eager", "onnx-decomposed@ort-cpu", "onnx-attention@ort-cpu", "onnx-contrib@ort-cpu",
        "onnx-decomposed@openvino", "onnx-attention@openvino",
    ]  # fmt: skip


def test_named_runtimes_get_every_exporter_and_the_baseline_is_added() -> None:
    sweep = grid.resolve("quick", {"runtimes": ("openvino",)})
    found = [a.label for a in grid.arms(sweep, TAKES)]
    assert found == [
        "torch-sdpa", "onnx-decomposed@openvino", "onnx-attention@openvino", "onnx-contrib@openvino",
    ]  # fmt: skip


def test_an_opset_asked_for_is_part_of_the_arm_and_the_case() -> None:
    arm = grid.Arm(exporter="onnx-attention", runtime="ort-cpu", opset=24)
    assert arm.label == "onnx-attention[opset=24]@ort-cpu"
    problem = Problem.make(seq_len=8)
    plain = grid.Arm(exporter="onnx-attention", runtime="ort-cpu")
    assert arm.case_id(problem) != plain.case_id(problem)
    assert plain.case_id(problem) != plain.case_id(problem.at(q_len=9))


def test_options_of_a_runtime_make_arms_and_the_plain_one_stays_where_it_is_the_baseline(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('options = ["torch-sdpa:backend=math", "torch-sdpa:backend=flash", "openvino:p=default"]\n')
    sweep = grid.resolve(file, {"runtimes": ("torch-sdpa", "openvino"), "exporters": ("onnx-attention",)})
    found = grid.arms(sweep, TAKES)
    assert [a.label for a in found] == [
        "torch-sdpa", "torch-sdpa[backend=math]", "torch-sdpa[backend=flash]", "onnx-attention@openvino[p=default]",
    ]  # fmt: skip
    assert [dict(a.options) for a in found] == [{}, {"backend": "math"}, {"backend": "flash"}, {"p": "default"}]
    assert len({a.case_id(Problem.make(seq_len=8)) for a in found}) == 4


def test_an_arm_with_options_can_be_the_baseline() -> None:
    given = {"options": ("torch-sdpa:backend=math",), "runtimes": ("ort-cpu",), "exporters": ("onnx-attention",)}
    found = grid.arms(grid.resolve(None, {**given, "baseline": "torch-sdpa[backend=math]"}), TAKES)
    assert [a.label for a in found] == ["torch-sdpa[backend=math]", "onnx-attention@ort-cpu"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torch-sdpa:backend=maths", "has no option backend=maths; it has backend=flash|math"),
        ("torch-sdpa:kernel=math", "has no option kernel=math; it has backend=flash|math"),
        ("torch-eager:backend=math", "torch-eager has no option backend=math; it has none"),
        ("openvino:x=1", "is of none of the runtimes torch-sdpa, torch-eager"),
        ("backend=math", "is not RUNTIME:NAME=VALUE; write for example torch-sdpa:backend=math"),
    ],
)
def test_an_option_that_no_runtime_of_the_sweep_has_is_refused(text: str, words: str) -> None:
    probes = {
        "torch-sdpa": Probe(available=True, traits={"options": {"backend": ["flash", "math"]}}),
        "torch-eager": Probe(available=True, traits={"options": {}}),
    }
    runtime_options.check(["torch-sdpa:backend=math"], probes)
    with pytest.raises(InputError, match=re.escape(words)):
        runtime_options.check([text], probes)


def test_a_case_id_is_the_same_in_every_version() -> None:
    # Changing this value breaks the comparison of runs of different versions.
    arm = grid.Arm(exporter="onnx-attention", runtime="ort-cpu")
    assert arm.case_id(Problem.make(seq_len=128)) == "6bd869af4855"


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('variants = ["self"]\nseq_lens = [16, 32]\ntime_budget = "2m"\nmemory_limit = "1GiB"\n')
    sweep = grid.resolve(path, {"seq_lens": (64,)})
    assert (sweep.name, sweep.seq_lens, sweep.time_budget_s, sweep.memory_limit_bytes) == (
        "mine",
        (64,),
        120.0,
        1 << 30,
    )


def test_a_single_value_in_a_file_needs_no_brackets(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text('variants = "self"\nseq_lens = 16\n')
    assert grid.resolve(path, {}).seq_lens == (16,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seq_len = [1]", "no key 'seq_len'.*did you mean 'seq_lens'"),
        ("seq_lens = [0]", "q_len must be a whole number of at least 1, got 0"),
        ("seq_lens = [1000000000]", "would need 2048000000000 bytes"),
        ("seq_lens = []", "is empty"),
        ("seq_lens = [16, 16]", "given twice"),
        ('seq_lens = ["x"]', "seq_lens"),
        ('variants = ["selv"]', "variant must be one of self, cross, causal, decode; got 'selv'"),
        ('mask = "causal_top_left"\nvariants = ["self"]', "fits none of the variants self"),
        ('masks = ["key_padding"]\nvariants = ["causal"]', "fits none of the variants causal"),
        ('masks = ["causal_top_left"]\nvariants = ["self", "causal"]', "variant self has none of the masks"),
        ('masks = ["holes"]', "mask must be none"),
        ('variants = ["self"]\nkv_lens = [4]', "needs variant cross"),
        ("num_heads = [-1]", "num_heads must be"),
        ("threads = 0", "between 1 and 4096"),
        ('time_budget = "soon"', "a duration is a number"),
        ('memory_limit = "lots"', "a size is a number"),
        ("memory_limit = 1", "at least 256MiB"),
        ("timeout = -1", "above 0"),
        ('timeout = "0.001s"', "at least 0.1s"),
        ("seed = -1", "between 0"),
        ("heads = [1]\nnum_heads = [2]", "given twice"),
        ("[table", "is not TOML"),
        ("oom_skip = 3", "oom_skip"),
        ("seq_lens = [true]", "seq_lens must not be true or false"),
        ("threads = true", "threads must not be true or false"),
        ("opset = [0]", "opset must be at least 1"),
        ('name = "../elsewhere"', "name must be the name of a folder, without /"),
        ('name = "a\\nb"', "name must be the name of a folder"),
        ('timeout = "soon"', "timeout: a duration is a number"),
        ('memory_limit = "9999999999TiB"', "memory_limit: a size must be below 8 EiB"),
        ("head_dims = [1000000]", r"a weight of shape \(8000000, 8000000\) would need"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as found:
        grid.resolve(path, {})
    assert "\n" not in str(found.value)


def test_a_size_with_too_many_digits_is_refused() -> None:
    with pytest.raises(InputError, match="below 8 EiB"):
        units.parse_size("9" * 400)


def test_an_unknown_sweep_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no sweep 'quik'; built in: quick, default, full.*did you mean 'quick'"):
        grid.resolve("quik", {})


def test_a_sweep_file_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the sweep file"):
        grid.resolve(tmp_path, {})


def test_a_block_with_a_causal_mask_takes_one_length() -> None:
    with pytest.raises(ProblemError, match="q_len must equal kv_len"):
        Problem.make(variant="causal", seq_len=4, kv_len=5)


@pytest.mark.parametrize(("text", "bytes_"), [("8GiB", 8 << 30), ("512MiB", 512 << 20), ("1.5kb", 1500), (7, 7)])
def test_sizes(text: str | int, bytes_: int) -> None:
    assert units.parse_size(text) == bytes_


@pytest.mark.parametrize(("text", "seconds"), [("300s", 300.0), ("5m", 300.0), ("90", 90.0), ("1h", 3600.0)])
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


OTHER = "ort-cpu@/opt/new/bin/python"
ELSEWHERE = {**TAKES, OTHER: True}
INSIDE = {OTHER: ("new", "1.32.0")}


@pytest.mark.parametrize(
    "baseline", ["onnx-attention@ort-cpu[new=1.32.0]", "onnx-attention@ort-cpu@/opt/new/bin/python"]
)
def test_a_runtime_elsewhere_is_an_arm_with_its_version_that_can_be_the_baseline(baseline: str) -> None:
    given = {"runtimes": ["ort-cpu", OTHER], "exporters": ["onnx-attention"], "baseline": baseline}
    sweep = grid.resolve(None, given)
    assert grid.selected_runtimes(sweep) == ["ort-cpu", OTHER]
    found = grid.arms(sweep, ELSEWHERE, INSIDE)
    assert [a.label for a in found] == ["onnx-attention@ort-cpu[new=1.32.0]", "onnx-attention@ort-cpu"]
    assert [a.plugin for a in found] == ["ort-cpu", "ort-cpu"]
    problem = grid.problems(sweep)[0]
    assert found[0].case_id(problem) != found[1].case_id(problem)


def test_a_runtime_elsewhere_has_the_options_that_name_it() -> None:
    given = {"runtimes": [OTHER], "exporters": ["onnx-attention"], "options": [f"{OTHER}:a=b"], "baseline": OTHER}
    found = grid.arms(grid.resolve(None, given), ELSEWHERE, INSIDE)
    assert [a.label for a in found] == ["onnx-attention@ort-cpu[new=1.32.0;a=b]"]


def test_paths_of_interpreters_are_made_absolute_so_that_a_run_can_be_resumed_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(
        'runtimes = ["ort-cpu", "ort-cpu@x/python"]\nbaseline = "onnx-attention@ort-cpu@x/python"\n', encoding="utf-8"
    )
    sweep = grid.resolve(tmp_path / "x.toml", {})
    assert sweep.runtimes == ("ort-cpu", f"ort-cpu@{tmp_path}/x/python")
    assert sweep.baseline == f"onnx-attention@ort-cpu@{tmp_path}/x/python"
    with pytest.raises(InputError, match="'ort-cpu@python3' names no interpreter: after ort-cpu@ comes the path"):
        grid.resolve(None, {"runtimes": ["ort-cpu@python3"]})
    with pytest.raises(InputError, match="is given twice"):
        grid.resolve(None, {"runtimes": ["ort-cpu@x/python", f"ort-cpu@{tmp_path}/x/python"]})
