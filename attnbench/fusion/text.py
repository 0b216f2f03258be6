"""The matrix in words: a table for a terminal, the answer to one question, CSV."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

from attnbench.fusion.matrix import Matrix
from attnbench.fusion.questions import FP8, Question
from attnbench.fusion.verdicts import BUILDS, FAILED, FUSED, REFUSED, UNFUSED, UNSUPPORTED, Answer
from attnbench.report.text import fmt_bytes, fmt_list

MARKS = {FUSED: "F", UNFUSED: "x", REFUSED: "r", UNSUPPORTED: "-", FAILED: "!"}
MEANING = {
    FUSED: "fused: builds, and planned memory grows linearly with T",
    UNFUSED: "not fused: builds, and planned memory grows with T x T",
    REFUSED: "refused by the parser or the compiler",
    UNSUPPORTED: "the recipe cannot write it",
    FAILED: "a worker failed; --resume asks again",
}
STRICT_REFUSED = "the node is refused as strict attention: this is the memory when it may be taken apart"
SHORT = {"onnx-decomposed": "dec", "onnx-attention": "att", "onnx-contrib": "con", "onnx-blocked": "blk",
         "fp8-qkpv": "qkpv", "fp8-qk": "qk"}  # fmt: skip
COLUMNS = (
    "dtype", "head_dim", "mask", "causal", "heads", "recipe", "arch", "verdict", "score_matrices", "seq_len",
    "planned_activation_bytes", "seq_len_2", "planned_activation_bytes_2", "strict", "disagreement", "stage", "words",
    "build_ms", "compiler",
)  # fmt: skip
_WIDTH_OF_WORDS = 240


def fold(matrix: Matrix) -> list[tuple[tuple[str, ...], dict[Question, Answer]]]:
    """Architectures with equal verdicts as one, with the answers of the first of them."""
    by_arch: dict[str, dict[Question, Answer]] = {arch: {} for arch in matrix.plan.archs}
    for answer in matrix.answers:
        by_arch[answer.arch][answer.question] = answer
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for arch, answers in by_arch.items():
        groups.setdefault(tuple((a.verdict, a.strict) for a in answers.values()), []).append(arch)
    return [(tuple(archs), by_arch[archs[0]]) for archs in groups.values()]


def matrix_csv(matrix: Matrix) -> str:
    """A row for every question and architecture; a number that there is none of is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for answer in matrix.answers:
        fields = {**answer.as_dict(), "compiler": matrix.compiler}
        for name in ("seq_len", "planned_activation_bytes"):
            values = fields.pop(f"{name}s" if name == "seq_len" else name)
            fields |= {name: values[0], f"{name}_2": values[1]}
        writer.writerow({name: "" if fields[name] is None else fields[name] for name in COLUMNS})
    return text.getvalue()


def matrix_text(matrix: Matrix, *, width: int) -> str:
    """One table for every group of architectures, then witnesses that differ, then refusals in the compiler's words."""
    plan = matrix.plan
    counts = ", ".join(f"{count} {verdict}" for verdict, count in matrix.counts.items())
    title = (
        f"{matrix.compiler}: is attention fused? Part core, 8 heads, batch 1, T = {plan.seq_len} and "
        f"{2 * plan.seq_len}. {len(plan.questions)} questions x {len(plan.archs)} architectures: {counts}"
    )
    lines = textwrap.wrap(title, width)
    keys = {MARKS[verdict]: MEANING[verdict] for verdict in MARKS if verdict in matrix.counts}
    if any(answer.strict == REFUSED for answer in matrix.answers):
        keys["*"] = STRICT_REFUSED
    for key, meaning in keys.items():
        lines += textwrap.wrap(f"  {key}  {meaning}", width, subsequent_indent="     ")
    recipes = dict.fromkeys(question.recipe for question in plan.questions)
    lines += [
        "",
        *textwrap.wrap("; ".join(f"{SHORT[recipe]} = {recipe}" for recipe in recipes), width, break_on_hyphens=False),
    ]
    for archs, answers in fold(matrix):
        lines += ["", ", ".join(archs), *_table(answers, width)]
    lines += _groups("The two witnesses differ:", [a for a in matrix.answers if a.disagreement], width)
    for verdict, head in ((REFUSED, "Refused:"), (UNSUPPORTED, "Not written:"), (FAILED, "Failed:")):
        lines += _groups(head, [a for a in matrix.answers if a.verdict == verdict], width)
    return "\n".join(line.rstrip() for line in lines)


def mark(answer: Answer | None) -> str:
    """`F`, `x*`: what stands in a cell; empty where nothing was asked."""
    if answer is None:
        return ""
    return MARKS[answer.verdict] + ("*" if answer.strict == REFUSED and answer.verdict != REFUSED else "")


def axes(answers: dict[Question, Answer]) -> tuple[list[str], list[tuple[str, str]], dict[tuple[str, object], Answer]]:
    """Rows, columns and what is where they cross."""
    cells: dict[tuple[str, object], Answer] = {(q.row, q.column): answer for q, answer in answers.items()}
    columns = sorted({q.column for q in answers}, key=lambda column: list({q.column: 0 for q in answers}).index(column))
    return list(dict.fromkeys(q.row for q in answers)), columns, cells


def _table(answers: dict[Question, Answer], width: int) -> list[str]:
    """One table, or several below each other where its columns do not fit."""
    rows, columns, cells = axes(answers)
    left = max(map(len, rows)) + 1
    lines, start = [], 0
    while start < len(columns):
        end = start + 1
        while end < len(columns) and left + sum(map(_cell_width, columns[start : end + 1])) <= width:
            end += 1
        lines += [*([""] if start else []), *_columns(rows, columns[start:end], cells, left)]
        start = end
    return lines


def _columns(
    rows: Sequence[str], columns: Sequence[tuple[str, str]], cells: Mapping[tuple[str, object], Answer], left: int
) -> list[str]:
    """Some columns, and the rows that have something in them."""
    heads = [
        [dtype if not i or columns[i - 1][0] != dtype else "" for i, (dtype, _) in enumerate(columns)],
        [SHORT[recipe] for _, recipe in columns],
    ]
    body = [(row, [mark(cells.get((row, column))) for column in columns]) for row in rows]
    return [
        f"{name:{left}}"
        + "".join(f"{text:>{_cell_width(column)}}" for text, column in zip(found, columns, strict=True))
        for name, found in [("", heads[0]), ("", heads[1]), *body]
        if any(found)
    ]


def _cell_width(column: tuple[str, str]) -> int:
    return max(len(column[0]), len(SHORT[column[1]])) + 1


def short_words(words: str) -> str:
    """What a compiler says without the places in its own source that it says it from."""
    text = re.sub(r"^I?Builder::\w+: ", "", words)
    text = re.sub(r"\s*In \w+ at /\S+:\d+\)?$", "", text)
    return textwrap.shorten(text, _WIDTH_OF_WORDS, placeholder=" ...")


def causes(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Answers by what is said of them, names of nodes apart."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        said = answer.disagreement or short_words(answer.words)
        found.setdefault(re.sub(r"node_\w+|'make_\w+'|'node_\w+'", "NODE", said), []).append(answer)
    return found


def spoken(answers: Sequence[Answer]) -> str:
    """Which: `sm75: fp32 (48 questions)`."""
    archs = ", ".join(dict.fromkeys(a.arch for a in answers))
    asked = (a.question for a in answers)
    columns = dict.fromkeys(q.recipe if q.recipe in FP8 else f"{q.dtype} {q.recipe}" for q in asked)
    questions = dict.fromkeys(a.question for a in answers)
    what = (
        next(iter(questions)).label if len(questions) == 1 else f"{len(questions)} questions of {fmt_list([*columns])}"
    )
    return f"{what} on {archs}"


def _groups(title: str, answers: Sequence[Answer], width: int) -> list[str]:
    lines: list[str] = ["", title] if answers else []
    for said, group in causes(answers).items():
        text = f"{spoken(group)}: {said}"
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return lines


def ask_text(matrix: Matrix, *, width: int) -> str:
    """A sentence for every verdict on one question; architectures and recipes with equal ones share it."""
    by_recipe: dict[tuple[str, tuple[str, ...]], list[Answer]] = {}
    for answer in matrix.answers:
        said = (answer.verdict, answer.strict, short_words(answer.words))
        by_recipe.setdefault((answer.question.recipe, said), []).append(answer)
    folded: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (recipe, _), group in by_recipe.items():
        folded.setdefault((_said(group), tuple(a.arch for a in group)), []).append(recipe)
    first = matrix.answers[0].question
    sentences = [
        f"{matrix.compiler}: {first.dtype}, {first.row} as {' and '.join(recipes)} is {said} ({', '.join(archs)})."
        for (said, archs), recipes in folded.items()
    ]
    return "\n".join(
        "\n".join(textwrap.wrap(s, width, subsequent_indent="  ", break_on_hyphens=False)) for s in sentences
    )


def _said(answers: Sequence[Answer]) -> str:
    """The end of the sentence on architectures with one verdict."""
    first = answers[0]
    if first.verdict not in (FUSED, UNFUSED):
        return f"{first.verdict}: {short_words(first.words)}"
    short, long = (
        _span([n for a in answers if (n := a.planned_activation_bytes[i]) is not None], fmt_bytes) for i in (0, 1)
    )
    growth = "linearly"
    if first.verdict == UNFUSED:
        growth = (
            f"by {_span([m for a in answers if (m := a.score_matrices) is not None], '{:.1f}'.format)} score matrices"
        )
    text = f"{first.verdict}: planned memory {short} at T = {first.seq_lens[0]}, {long} at {first.seq_lens[1]}, grows"
    witness = {BUILDS: "; as strict attention it builds", REFUSED: "; as strict attention it is refused"}
    return f"{text} {growth}{witness.get(first.strict, '')}"


def _span(values: Sequence[float], fmt: Callable[[float], str]) -> str:
    """`8.00 MiB`, or `0 B to 8.00 MiB` where they differ."""
    return " to ".join(dict.fromkeys(fmt(value) for value in (min(values), max(values))))
