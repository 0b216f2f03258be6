"""What the report says of files that were only compiled."""

from typing import Any

from attnbench.analysis.groups import make_panels
from attnbench.problem import Problem
from attnbench.records import COMPILES_ONLY, Record
from attnbench.report import compiled_text, figures
from attnbench.report.findings import trust_line
from tests.report.conftest import make_record

VERSION = "1.7.1.116"


def compiled(dtype: Any, length: int, planned: int, kernel: str, at_long: tuple[int, int]) -> Record:
    return make_record(
        Problem.make(variant="causal", seq_len=length, dtype=dtype), "onnx-attention@tensorrt-rtx",
        exporter="onnx-attention", runtime="tensorrt-rtx", runtime_version=VERSION, device="sm89", status="compiled",
        planned_activation_bytes=planned, attention_kernel=kernel, kernel_evidence="compiler", flags=[COMPILES_ONLY],
        latency_ms_median=None, facts={"planned_bytes_at": {"4096": at_long[0], "8192": at_long[1]}},
    )  # fmt: skip


MIB = 1 << 20
ROWS = [
    compiled("fp16", 512, 10 * MIB, "fused", (20 * MIB, 32 * MIB)),
    compiled("fp16", 1024, 12 * MIB, "fused", (20 * MIB, 32 * MIB)),
    compiled("fp32", 512, 20 * MIB, "unfused", (1000 * MIB, 3980 * MIB)),
    compiled("fp32", 1024, 70 * MIB, "unfused", (1000 * MIB, 3980 * MIB)),
]


def test_the_section_names_the_compiler_and_says_from_the_data_how_memory_grows() -> None:
    section = compiled_text.compiled_section(ROWS)
    assert section is not None
    assert section.title == f"Compiled, not run: tensorrt-rtx {VERSION} for sm89"
    assert list(section.lines) == [
        f"tensorrt-rtx {VERSION} for sm89, fp16: fused in 1 file; planned memory grows linearly, at T = 1024 up to "
        "12.0 MiB.",
        f"tensorrt-rtx {VERSION} for sm89, fp32: unfused in 1 file; planned memory grows as the square of T, at "
        "T = 1024 up to 70.0 MiB.",
    ]
    (table,) = section.tables
    assert list(table.head) == ["file", "attention", "T = 512", "T = 1024", "growth"]
    assert [row[-1] for row in table.rows] == [
        "linear: from T = 4096 to 8192 x 1.60", "quadratic: from T = 4096 to 8192 x 3.98",
    ]  # fmt: skip


def test_what_the_compiler_refuses_is_told_once_with_its_words() -> None:
    refused = [
        r.model_copy(update={"status": "unsupported", "reason": "no kernel", "planned_activation_bytes": None})
        for r in ROWS[2:]
    ]
    lines = compiled_text.terminal_lines([*ROWS[:2], *refused])
    assert [line for line in lines if "no kernel" in line] == [
        "  Not compiled: causal fp32 attention@tensorrt-rtx: no kernel"
    ]


def test_rows_that_are_only_compiled_are_in_no_chart_of_what_ran() -> None:
    timed = make_record(Problem.make(seq_len=512), "torch-sdpa")
    panels = make_panels([timed, *ROWS])
    assert [r.arm for panel in panels for r in panel.records] == ["torch-sdpa"]


def test_a_run_that_compiled_nothing_has_no_section_and_no_picture() -> None:
    timed = [make_record(Problem.make(seq_len=512), "torch-sdpa")]
    assert compiled_text.compiled_section(timed) is None
    assert compiled_text.terminal_lines(timed) == []
    with figures.plotting():
        assert compiled_text.draw(timed) is None


def test_the_picture_has_a_line_per_file_fused_solid_and_unfused_dashed() -> None:
    with figures.plotting():
        figure = compiled_text.draw(ROWS)
    assert figure is not None
    lines = figure.axes[0].get_lines()
    assert [line.get_linestyle() for line in lines] == ["-", "--"]
    assert [list(line.get_xdata()) for line in lines] == [[512, 1024], [512, 1024]]


def test_that_a_row_was_only_compiled_is_no_warning_of_how_far_to_trust_the_run() -> None:
    rows = [ROWS[0], ROWS[2].model_copy(update={"flags": [COMPILES_ONLY, "other_kernel"]})]
    told = " ".join(trust_line(rows, {"visits": 4, "contended_visits": 0}))
    assert "Contended visits" in told
    assert "Flagged" not in told


def test_a_file_of_the_user_goes_by_its_name() -> None:
    fields = {"model": "mine.onnx", "part": "model", "variant": "model", "status": "unsupported", "reason": "no way"}
    refused = ROWS[0].model_copy(update={**fields, "arm": "file@tensorrt-rtx", "planned_activation_bytes": None})
    lines = compiled_text.terminal_lines([refused])
    assert "  Not compiled: mine.onnx fp16 file@tensorrt-rtx: no way" in lines


def test_an_engine_is_not_run_and_nobody_says_that_it_was_not_compiled() -> None:
    fields = {"model": "m.plan", "part": "model", "variant": "model", "status": "unavailable", "reason": "no GPU"}
    engine = ROWS[0].model_copy(update={**fields, "arm": "engine@tensorrt-rtx", "planned_activation_bytes": None})
    assert compiled_text.terminal_lines([engine]) == [
        f"Not run here: tensorrt-rtx {VERSION}", "  Not run: m.plan fp16 engine@tensorrt-rtx: no GPU",
    ]  # fmt: skip


def of_model(batch: int, length: int | None, planned: int) -> Record:
    """A row of a file of the user, compiled."""
    sizes = {"batch": batch} if length is None else {"batch": batch, "seq": length}
    fields = {"model": "mine.onnx", "part": "model", "variant": "model", "arm": "file@tensorrt-rtx", "sizes": sizes}
    bound = None if length is None else "seq"
    more = {"bound": bound, "q_len": length, "planned_activation_bytes": planned, "facts": {}}
    return ROWS[0].model_copy(update={**fields, **more})


def test_sizes_of_a_file_that_do_not_follow_t_have_lines_of_their_own() -> None:
    rows = [of_model(batch, length, batch * length * 1024) for batch in (1, 8) for length in (64, 128)]
    section = compiled_text.compiled_section(rows)
    assert section is not None
    assert section.tables[0].rows == [
        ["mine.onnx batch=1 fp16 file@tensorrt-rtx", "fused", "64.0 KiB", "128 KiB", ""],
        ["mine.onnx batch=8 fp16 file@tensorrt-rtx", "fused", "512 KiB", "1.00 MiB", ""],
    ]


def test_a_file_without_t_has_the_memory_of_its_own_sizes() -> None:
    section = compiled_text.compiled_section([of_model(2, None, 3 * MIB)])
    assert section is not None
    assert section.tables[0].head == ["file", "attention", "its own sizes", "growth"]
    assert section.lines == [
        "tensorrt-rtx 1.7.1.116 for sm89, fp16: fused in 1 file; planned memory at its own sizes up to 3.00 MiB."
    ]


def test_slimming_a_picture_for_the_page_leaves_its_words_alone() -> None:
    svg = '<svg viewBox="0 0 9 9"><text x="1.23456">tensorrt-rtx 1.7.1.116, 2.0625 x</text></svg>'
    assert '<text x="1.23">tensorrt-rtx 1.7.1.116, 2.0625 x</text>' in figures.inline_svg(svg, "label")
