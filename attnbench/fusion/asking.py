"""In a worker with the exporters and TensorRT-RTX: write the graph of a question, compile it at T and 2T."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnbench import plugins, trt_compiler
from attnbench.errors import UnsupportedError
from attnbench.fusion import fp8_graph
from attnbench.fusion.questions import FP8, Question
from attnbench.fusion.verdicts import BUILDS, REFUSED, UNSUPPORTED, Answer, judge
from attnbench.trt_compiler import Compiled

ATTENTION = "onnx-attention"  # the recipe whose node is the second witness


def answers(*, question: dict[str, Any], archs: Sequence[str], seq_len: int, folder: str) -> dict[str, Any]:
    """Ask one question for every architecture; {"answers": as `Answer.as_dict`}.

    Args:
        question: as `Question.as_dict`.
        archs: of `trt_compiler.ARCHS`.
        seq_len: T; the graph is compiled for T and for 2T.
        folder: of the asking process, which removes what a killed worker leaves in it.
    """
    asked = Question(**question)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "model.onnx"
        try:
            write(asked, seq_len, path)
        except UnsupportedError as err:
            lens = (seq_len, 2 * seq_len)
            found = [
                Answer(question=asked, arch=arch, seq_lens=lens, verdict=UNSUPPORTED, words=str(err)) for arch in archs
            ]
        else:
            found = [ask(asked, arch, seq_len, path) for arch in archs]
    return {"answers": [answer.as_dict() for answer in found]}


def write(question: Question, seq_len: int, path: Path) -> None:
    """Write the graph; its lengths stay free.

    Raises:
        UnsupportedError: the recipe cannot express it.
        ExportError: it cannot be written.
    """
    problem = question.problem(seq_len)
    if question.recipe in FP8:
        fp8_graph.write(question.recipe, problem, path)
        return
    exporter = plugins.load_exporter(question.recipe)
    support = exporter.supports(problem, exporter.opsets[0])
    if not support.ok:
        raise UnsupportedError(support.reason)
    exporter.export(problem, exporter.opsets[0], path, seed=0)


def ask(question: Question, arch: str, seq_len: int, path: Path) -> Answer:
    """One architecture: strict first, where there is an Attention node; if refused, the node may be taken apart."""
    lens = (seq_len, 2 * seq_len)
    problems = [question.problem(length) for length in lens]

    def compiled(strict: bool | None) -> list[Compiled]:
        """At T and, if it is not refused there, at 2T."""
        built: list[Compiled] = []
        for problem in problems:
            built.append(trt_compiler.compile_onnx(path, arch=arch, shapes=problem.input_shapes(), strict=strict))
            if built[-1].is_refused:
                break
        return built

    strict, has_node = "", question.recipe == ATTENTION
    built = compiled(True if has_node else None)
    if has_node and built[-1].stage != "parser":
        strict = REFUSED if built[-1].is_refused else BUILDS
    if strict == REFUSED:
        built = compiled(False)
    known: dict[str, Any] = {"question": question, "arch": arch, "seq_lens": lens, "strict": strict}
    planned = [one.planned_activation_bytes for one in built]
    last = built[-1]
    if last.is_refused:
        return Answer(
            verdict=REFUSED, words=last.words, stage=last.stage,
            planned_activation_bytes=(planned[0] if len(built) == 2 else None, None), **known,
        )  # fmt: skip
    told = [planned_bytes for planned_bytes in planned if planned_bytes is not None]  # with an engine there is one
    verdict, matrices = judge(told, [problem.score_bytes() for problem in problems])
    return Answer(
        verdict=verdict, score_matrices=matrices, planned_activation_bytes=(told[0], told[1]),
        build_ms=sum(one.build_ms for one in built), **known,
    )  # fmt: skip
