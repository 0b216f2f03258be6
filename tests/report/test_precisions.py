"""The table of precisions: which rows it has, and ratios that say what they are."""

from typing import Any

import pytest

from attnbench.records import Record
from attnbench.report.precisions import lines, tables

MANIFEST: dict[str, Any] = {"baseline_arm": "torch-sdpa", "sweep": {"baseline_precision": "fp32"}}


def row(dtype: str, ms: float, *, arm: str = "torch-sdpa", seq_len: int = 128, **fields: Any) -> Record:
    return Record(
        run_id="r", started_at_utc="2026-11-29T12:00:00+00:00", case_id=f"{arm}{dtype}{seq_len}",
        problem_id=f"{dtype}{seq_len}", arm=arm, part="block", variant="self", mask="none", batch_size=1, q_len=seq_len,
        kv_len=seq_len, num_heads=8, num_kv_heads=8, head_dim=64, embed_dim=512, dtype=dtype, exporter="torch",
        runtime=arm, seed=0, attnbench_version="0", latency_ms_median=ms, latency_ms_ci_low=ms * 0.9,
        latency_ms_ci_high=ms * 1.1, worst_row_rel_err=1e-6, peak_host_bytes=1 << 20,
        **{"compute_precision": dtype, "status": "ok", "latency_scope": "host", **fields},
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
