"""The matrix of conformance as text, CSV and JSON. A cell is a row of `conform.json`."""

import csv
import io
import string
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

VERDICTS = ("conforms", "differs", "refuses", "unsupported")
MARKS = {"conforms": "ok", "differs": "XX", "refuses": "re", "unsupported": "--"}
COLUMNS = ("probe", "shows", "problem", "arm", "exporter", "opset", "runtime", "verdict", "how", "error", "limit",
           "expected", "got", "words")  # fmt: skip
ONNX_CASES = "onnx"  # the exporter of files that the onnx package ships

Cells = Sequence[Mapping[str, Any]]


def matrix_csv(cells: Cells) -> str:
    """Every cell as a row, every column; a number that there is none of is empty, and `how` says why."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell[name] for name in COLUMNS} for cell in cells)
    return text.getvalue()


def split(cells: Cells) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Cells of the probes, and of onnx's own cases."""
    own = [cell for cell in cells if cell["exporter"] == ONNX_CASES]
    return [cell for cell in cells if cell["exporter"] != ONNX_CASES], own


def counts(cells: Cells) -> str:
    """`777 conforms, 11 differs, 134 refuses, 99 unsupported`."""
    found = Counter(cell["verdict"] for cell in cells)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)


def matrix_text(matrix: Mapping[str, Any], *, width: int) -> str:
    """The matrix of probes, then what differs and is refused, within a number of columns."""
    probes, own = split(matrix["cells"])
    names = list(dict.fromkeys(cell["probe"] for cell in probes))
    answers: dict[str, list[str]] = {}
    for cell in probes:
        answers.setdefault(cell["arm"], []).append(cell["verdict"])
    columns = _folded(probes, answers)
    left = max(map(len, names), default=0) + 1
    per_table = max(1, (width - left) // 3)
    lines = [f"{len(names)} probes x {len(answers)} arms: {counts(probes)}"]
    lines += [f"  {mark}  {verdict}" for verdict, mark in MARKS.items()]
    if len(columns) < len(answers):
        lines.append("Opsets that answer alike share a column.")
    for start in range(0, len(columns), per_table):
        shown = list(columns.items())[start : start + per_table]
        keys = [_key(start + i) for i in range(len(shown))]
        lines += ["", *(f"{key:>2}  {label}" for key, (label, _) in zip(keys, shown, strict=True)), ""]
        lines.append(" " * left + "".join(f"{key:>3}" for key in keys))
        for row, name in enumerate(names):
            lines.append(f"{name:{left}}" + "".join(f"{MARKS[verdicts[row]]:>3}" for _, verdicts in shown))
    if own:
        cases = len({cell["probe"] for cell in own})
        lines += ["", f"{cases} cases of the onnx package for Attention:"]
        for runtime in dict.fromkeys(cell["runtime"] for cell in own):
            lines.append(f"  {runtime}: {counts([cell for cell in own if cell['runtime'] == runtime])}")
    lines += _faults("Differs", [cell for cell in matrix["cells"] if cell["verdict"] == "differs"], width)
    lines += _faults("Refuses", [cell for cell in matrix["cells"] if cell["verdict"] == "refuses"], width)
    lines += [f"note: {notice}" for notice in matrix["notices"]]
    return "\n".join(line.rstrip() for line in lines)


def _folded(cells: Cells, by_arm: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The lists by arm, arms that differ only in the opset and have equal lists under one name, in the first's place.

    `onnx-decomposed[17-20,23]@ort-cpu`.
    """
    parts = {cell["arm"]: (cell["exporter"], cell["runtime"], cell["opset"]) for cell in cells}
    opsets: dict[tuple[str, str, tuple[str, ...]], list[int | None]] = {}
    for arm, values in by_arm.items():
        exporter, runtime, opset = parts[arm]
        opsets.setdefault((exporter, runtime, tuple(values)), []).append(opset)
    label = {(exporter, runtime, opset): arm for arm, (exporter, runtime, opset) in parts.items()}
    return {
        f"{exporter}[{_ranges(sorted(opset for opset in found if opset is not None))}]@{runtime}"
        if len(found) > 1
        else label[exporter, runtime, found[0]]: list(values)
        for (exporter, runtime, values), found in opsets.items()
    }


def _ranges(numbers: Sequence[int]) -> str:
    """17-20,23 of 17, 18, 19, 20, 23."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _key(number: int) -> str:
    """A to z, then A to Z, then two letters."""
    letters = string.ascii_letters
    return letters[number] if number < len(letters) else letters[number // 52 - 1] + letters[number % 52]


def _faults(title: str, cells: Cells, width: int) -> list[str]:
    """One entry per arm and cause: the probes that show it."""
    if not cells:
        return []
    by_cause: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        by_cause.setdefault(cell["how"], {}).setdefault(cell["arm"], []).append(cell["probe"])
    lines = ["", f"{title}:"]
    for how, by_arm in by_cause.items():
        for arm, names in _folded(cells, by_arm).items():
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            text = f"{arm}: {textwrap.shorten(how, 160, placeholder=' ...')} ({shown})"
            lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return lines
