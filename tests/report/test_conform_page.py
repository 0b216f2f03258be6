"""The matrix as text, CSV and page: every cell, its words and its numbers."""

import csv
import io
import json
import re
from typing import Any

from attnbench.report import conform_page, conform_text


def cell(
    probe: str, arm: str, verdict: str, how: str = "", error: float | None = None, **fields: Any
) -> dict[str, Any]:
    exporter, _, runtime = arm.partition("@")
    return {
        "probe": probe, "shows": "a mean", "problem": "core self", "arm": arm, "exporter": exporter, "opset": 20,
        "runtime": runtime, "verdict": verdict, "how": how, "error": error, "limit": 5e-05, "expected": "1 2",
        "got": "3 4", "words": "", **fields,
    }  # fmt: skip


MATRIX: dict[str, Any] = {
    "versions": {"ort": "1.32"},
    "seconds": 75.0,
    "notices": [],
    "cells": [
        cell("causal", "a@ort", "conforms", error=1e-7),
        cell("causal", "b@ort", "differs", "bottom-right instead of top-left", 0.75),
        cell("fp16 <script>", "a@ort", "refuses", "no kernel, \"NOT_IMPLEMENTED\"", words="9 : FAIL"),
        cell("fp16 <script>", "b@ort", "unsupported", "takes fp32"),
        cell("attention_3d", "onnx@ort", "differs", "Y: off", 0.2),
    ],
}  # fmt: skip


def test_the_text_shows_every_cell_and_every_fault_in_eighty_columns() -> None:
    text = conform_text.matrix_text(MATRIX, width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "2 probes x 2 arms: 1 conforms, 1 differs, 1 refuses, 1 unsupported" in text
    assert re.search(r"^causal +ok XX$", text, re.MULTILINE)
    assert re.search(r"^fp16 <script> +re --$", text, re.MULTILINE)
    assert "  b@ort: bottom-right instead of top-left (causal)" in text
    assert "  ort: 0 conforms, 1 differs, 0 refuses, 0 unsupported" in text


def test_many_arms_are_split_into_tables_that_fit() -> None:
    cells = [cell("p" * 40, f"x{n}@ort", "conforms") for n in range(60)]  # 60 exporters: nothing to fold
    text = conform_text.matrix_text({**MATRIX, "cells": cells}, width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.count(" ok") == 60 + 1  # and the legend


def test_a_refusal_has_the_sentence_and_the_words_of_the_library() -> None:
    page = conform_page.matrix_page(MATRIX, title="Matrix")
    assert "a@ort: refuses: no kernel, &quot;NOT_IMPLEMENTED&quot;; its words: 9 : FAIL" in page


def test_opsets_that_answer_alike_share_a_column_and_a_line() -> None:
    cells = [
        cell("causal", f"x[{opset}]@ort", "differs" if opset == 22 else "refuses", "no kernel", opset=opset)
        | {"exporter": "x", "runtime": "ort"}
        for opset in (17, 18, 19, 22, 24)
    ]
    text = conform_text.matrix_text({**MATRIX, "cells": cells}, width=80)
    assert "1 probes x 5 arms: 0 conforms, 1 differs, 4 refuses, 0 unsupported" in text
    assert re.search(r"^ a  x\[17-19,24\]@ort\n b  x\[22\]@ort$", text, re.MULTILINE)
    assert re.search(r"^causal +re XX$", text, re.MULTILINE)
    assert "  x[17-19,24]@ort: no kernel (causal)" in text
    assert "  x[22]@ort: no kernel (causal)" in text


def test_the_csv_has_every_cell_and_no_number_that_there_is_not() -> None:
    rows = list(csv.DictReader(io.StringIO(conform_text.matrix_csv(MATRIX["cells"]))))
    assert [row["verdict"] for row in rows] == ["conforms", "differs", "refuses", "unsupported", "differs"]
    assert (rows[1]["error"], rows[1]["how"]) == ("0.75", "bottom-right instead of top-left")
    assert (rows[2]["error"], rows[2]["how"]) == ("", 'no kernel, "NOT_IMPLEMENTED"')


def test_the_page_holds_every_cell_and_asks_for_nothing() -> None:
    page = conform_page.matrix_page(MATRIX, title="Matrix & more")
    assert page.count("data-i=") == 5
    assert "Matrix &amp; more" in page
    assert "<script>alert" not in page
    assert "fp16 &lt;script&gt;" in page
    assert not re.search(r"(src|href)=", page)
    data = re.search(r"<script type=application/json id=data>(.*?)</script>", page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1]) == MATRIX["cells"]


def test_a_cell_says_its_numbers_without_script() -> None:
    page = conform_page.matrix_page(MATRIX, title="Matrix")
    numbers = "error 0.75, 5e-05 is allowed; expected 1 2, got 3 4"
    assert f'title="causal, b@ort: differs: bottom-right instead of top-left; {numbers}"' in page
    assert "<td>1 2 → 3 4</td>" in page
