"""The page of a conformance matrix names the command that reproduces a cell."""

import shlex

from attnbench.report.conform_page import matrix_page

CELL = {"arm": "onnx-x[20]@ort-cpu", "exporter": "onnx-x", "opset": 20, "runtime": "ort-cpu", "probe": "it's one",
        "shows": "a mean", "problem": "core", "verdict": "differs", "how": "off", "error": 0.5, "limit": 5e-5,
        "expected": "1", "got": "2", "words": ""}  # fmt: skip

OWN = {**CELL, "exporter": "onnx", "arm": "onnx[20]@ort-cpu", "probe": "own"}  # a case of the onnx package


def test_a_cell_has_its_command_and_what_has_no_file_has_none(visit, tmp_path):
    cells = [CELL, {**CELL, "probe": "other", "verdict": "unsupported"}, OWN]
    folder = tmp_path / "a b's"
    folder.mkdir()
    path = folder / "conform.html"
    matrix = {"cells": cells, "versions": {}, "notices": [], "seconds": 1.0}
    path.write_text(matrix_page(matrix, title="x"), encoding="utf-8")
    page = visit(path, wait=False)
    buttons = page.locator(".matrix button")
    shown = []
    for i in range(buttons.count()):
        buttons.nth(i).click()
        shown.append([text for text in page.locator("#cell dd").all_inner_texts() if text.startswith("attnbench")])
    assert [len(commands) for commands in shown] == [1, 0, 1]
    assert shlex.split(shown[0][0]) == ["attnbench", "repro", str(folder), "onnx-x[20]@ort-cpu:it's one"]
    assert shlex.split(shown[2][0])[-1] == "onnx[20]@ort-cpu:own"
