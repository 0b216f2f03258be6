"""The table of precisions: which rows it has, and ratios that say what they are."""

from typing import Any

import pytest

from attnbench.analysis.groups import make_panels
from attnbench.records import Record
from attnbench.report.html import render
from attnbench.report.markdown import markdown_summary
from attnbench.report.metrics import flat_metrics
from attnbench.report.pictures import Pictures
from attnbench.report.precisions import lines, sections, tables

MANIFEST: dict[str, Any] = {"baseline_arm": "torch-sdpa", "sweep": {"baseline_precision": "fp32"}}


def row(dtype: str, ms: float, *, arm: str = "torch-sdpa", seq_len: int = 128, **fields: Any) -> Record:
    return Record(
        run_id="r", started_at_utc="2026-11-29T12:00:00+00:00", case_id=f"{arm}{dtype}{seq_len}",
        problem_id=f"{dtype}{seq_len}", arm=arm, part="block", variant="self", mask="none", batch_size=1, q_len=seq_len,
        kv_len=seq_len, num_heads=8, num_kv_heads=8, head_dim=64, embed_dim=512, dtype=dtype, exporter="torch",
        runtime=arm, seed=0, attnbench_version="0", latency_ms_median=ms, latency_ms_ci_low=ms * 0.9,
        latency_ms_ci_high=ms * 1.1,
        **{"compute_precision": dtype, "status": "ok", "latency_scope": "host", "worst_row_rel_err": 1e-6,
           "peak_host_bytes": 1 << 20, **fields},
    )  # fmt: skip


def test_every_precision_is_compared_with_the_baseline_in_its_own() -> None:
    (table,) = tables([row("bf16", 2.0), row("fp32", 4.0), row("fp16", 1.0)], MANIFEST)
    assert [(r.precision, r.speedup) for r in table.rows] == [("fp32", 1.0), ("fp16", 4.0), ("bf16", 2.0)]
    assert table.rows[1].speedup_low == pytest.approx(4.0 * 0.9 / 1.1)
    assert table.rows[1].speedup_high == pytest.approx(4.0 * 1.1 / 0.9)


def test_fp32_that_ran_in_tf32_is_a_row_of_tf32() -> None:
    rows = [row("fp32", 4.0), row("fp32", 2.0, arm="torch-sdpa[use_tf32=on]", compute_precision="tf32")]
    (table,) = tables(rows, MANIFEST)
    assert [r.precision for r in table.rows] == ["fp32", "tf32"]


def test_it_is_at_the_longest_t_where_the_baseline_ran() -> None:
    rows = [row("fp32", 1.0), row("fp16", 1.0), row("fp32", 4.0, seq_len=512), row("fp16", 2.0, seq_len=512)]
    (table,) = tables([*rows, row("fp16", 9.0, seq_len=1024)], MANIFEST)
    assert table.title.startswith("Precisions at T = 512")
    assert [r.speedup for r in table.rows] == [1.0, 2.0]


def test_wrong_rows_and_other_scopes_are_left_out() -> None:
    rows = [row("fp32", 4.0), row("fp16", 1.0, status="mismatch"), row("bf16", 2.0, latency_scope="device")]
    assert tables(rows, MANIFEST) == []


def test_without_a_baseline_in_a_precision_there_is_no_table() -> None:
    assert tables([row("fp32", 4.0), row("fp16", 1.0)], {"baseline_arm": "torch-sdpa", "sweep": {}}) == []


def test_the_text_says_that_the_ratio_is_not_paired_and_what_it_was_computed_in() -> None:
    (table,) = tables([row("fp32", 4.0), row("fp16", 1.0, compute_precision="fp32")], MANIFEST)
    text = "\n".join(lines(table))
    assert "fp16 in fp32" in text
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert "it is no paired ratio" in text


BOTH = [row("fp32", 4.0), row("fp16", 1.0, worst_row_rel_err=4e-4, peak_host_bytes=3 << 20)]


def test_the_page_has_the_table_with_speed_error_and_bytes() -> None:
    page = render("run", BOTH, MANIFEST, make_panels(BOTH), Pictures(), [], sections(BOTH, MANIFEST))
    assert '<a href="#precisions">Precisions</a>' in page
    assert "<caption>Precisions at T = 128: block self, batch 1</caption>" in page
    cells = ("torch-sdpa", "1.00 ms", "4.0 (3.3 to 4.9)", "4.0e-04", "3.00 MiB")
    assert '<th scope="row">fp16</th>' + "".join(f"<td>{cell}</td>" for cell in cells) in page
    assert "Speed-up: time of torch-sdpa in fp32 over this time" in page


def test_the_baseline_is_not_compared_with_itself() -> None:
    (table,) = tables(BOTH, MANIFEST)
    assert (table.rows[0].speedup_low, table.rows[0].speedup, table.rows[0].speedup_high) == (1.0, 1.0, 1.0)
    assert "fp32       torch-sdpa  4.00 ms  baseline" in lines(table)[2]


def test_without_a_table_the_page_has_no_such_section() -> None:
    assert sections(BOTH, {"baseline_arm": "torch-sdpa", "sweep": {}}) == []


def test_every_run_of_a_merged_page_has_its_own_table() -> None:
    others = [r.model_copy(update={"run_id": "s"}) for r in BOTH]
    runs = [
        {"name": name, "folder": name, "run_id": run_id, "manifest": {"run_id": run_id, **MANIFEST}}
        for name, run_id in (("here", "r"), ("there", "s"))
    ]
    found = sections([*BOTH, *others], {"merged": runs})
    assert [(s.id, s.title) for s in found] == [
        ("precisions-1", "Precisions: here"),
        ("precisions-2", "Precisions: there"),
    ]
    assert [len(s.tables[0].rows) for s in found] == [2, 2]


def test_the_summary_for_a_pull_request_has_the_table_and_only_the_first_few() -> None:
    text = markdown_summary(BOTH, MANIFEST, "results/x")
    assert "**Precisions at T = 128: block self, batch 1**" in text
    assert "| fp16 | torch-sdpa | 1.00 ms | 4.0 (3.3 to 4.9) | 4.0e-04 | 3.00 MiB |" in text
    many = [r.model_copy(update={"batch_size": n, "problem_id": f"{r.dtype}{n}"}) for r in BOTH for n in range(1, 8)]
    assert "3 more tables of precisions in the report" in markdown_summary(many, MANIFEST, "results/x")


def test_metrics_have_the_speed_ups_of_the_table() -> None:
    metrics = flat_metrics([*BOTH, row("fp16", 9.0, seq_len=1024)], MANIFEST)
    name = "block.fp16.b1.h8x64.self.T128/torch-sdpa/precision_speedup"
    assert metrics[name] == 4.0
    assert metrics[f"{name}_low"] == pytest.approx(4.0 * 0.9 / 1.1)
    assert metrics[f"{name}_high"] == pytest.approx(4.0 * 1.1 / 0.9)
    assert metrics["block.fp32.b1.h8x64.self.T128/torch-sdpa/precision_speedup"] == 1.0
    assert "block.fp16.b1.h8x64.self.T1024/torch-sdpa/precision_speedup" not in metrics
