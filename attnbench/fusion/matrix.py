"""A whole matrix: questions go to two workers, every answer is on disk before the next question is asked."""

import importlib.metadata
import importlib.util
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench import trt_compiler
from attnbench.deploy.shop import MEMORY_LIMIT_BYTES, TASKS, TIMEOUT_S, WITH_EXPORTERS
from attnbench.errors import AttnbenchError, InputError, RecordsError, UnavailableError, WorkerError
from attnbench.files import only_writer, write_bytes
from attnbench.fusion.questions import Question
from attnbench.fusion.verdicts import FAILED, VERDICTS, Answer
from attnbench.measure import environment
from attnbench.sweep.workers import ForkServers, ReportedError, Worker
from attnbench.trt_compiler import PACKAGES, RTX

RECORDS = "fusion.jsonl"  # the plan, then one line for every question
ARCHS = ("sm75", "sm80", "sm89", "sm120")  # one of each generation: Turing, Ampere, Ada, Blackwell
SEQ_LEN = 2048  # with 2T = 4096; score matrices are 16 times the operands and more
MIN_SEQ_LEN = 1024  # below it, score matrices do not dominate
WORKERS = 2
_PRELOAD = (*WITH_EXPORTERS, RTX, TASKS)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked, of which compiler."""

    version: str  # of tensorrt-rtx
    archs: tuple[str, ...]
    seq_len: int  # T; the other is 2T
    questions: tuple[Question, ...]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "compiler": f"{PACKAGES[RTX]} {self.version}", "version": self.version, "archs": list(self.archs),
            "seq_len": self.seq_len, "questions": [question.as_dict() for question in self.questions],
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The answers to a plan, in its order."""

    plan: Plan
    answers: Sequence[Answer]
    seconds: float

    @property
    def compiler(self) -> str:
        """`tensorrt-rtx 1.7.1.116`: whose verdicts these are."""
        return f"{PACKAGES[RTX]} {self.plan.version}"

    @property
    def counts(self) -> dict[str, int]:
        """How many answers of every verdict."""
        found = Counter(answer.verdict for answer in self.answers)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}

    @property
    def exit_code(self) -> int:
        """0: every question is answered, a refusal is an answer; 1: a worker failed at one."""
        return 1 if any(answer.verdict == FAILED for answer in self.answers) else 0

    def as_dict(self) -> dict[str, Any]:
        """As JSON: one row for every question and architecture."""
        plan = self.plan
        return {
            "compiler": self.compiler, "archs": list(plan.archs), "seq_lens": [plan.seq_len, 2 * plan.seq_len],
            "seconds": round(self.seconds, 1), "counts": self.counts,
            "answers": [answer.as_dict() for answer in self.answers],
        }  # fmt: skip


def installed_version() -> str:
    """Of tensorrt-rtx; nothing is imported.

    Raises:
        UnavailableError: it, or what writes the graphs, is not installed.
    """
    package = PACKAGES[RTX]
    if importlib.util.find_spec(RTX) is None:
        raise UnavailableError(f"{package} is not installed, so nothing can be asked of it; pip install {package}")
    missing = [name for name in ("torch", "onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"{', '.join(missing)} not installed, so no graph can be written; pip install them")
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as err:
        raise UnavailableError(f"a module {RTX} is there without its package; pip install {package}") from err


def run(plan: Plan, records: Path | None, say: Callable[[str], object]) -> Matrix:
    """Ask everything that the records have no answer to.

    Args:
        plan: of a file with records the one that is in it, see `read_plan`.
        records: a .jsonl, made here where it is not there; every answer is added when it comes. None: kept nowhere.
        say: told how far it is.

    Raises:
        InputError: another process is at these records.
        UnavailableError: what workers need cannot be imported.
        OSError: the records cannot be written.
    """
    with nullcontext() if records is None else only_writer(records.parent):
        return _run(plan, records, say)


def _run(plan: Plan, records: Path | None, say: Callable[[str], object]) -> Matrix:
    start = time.monotonic()
    done: dict[Question, list[Answer]] = {}
    if records is not None and records.exists():
        done = read_answers(records, plan)
        _drop_torn_line(records)
    elif records is not None:
        records.write_text(_line({"plan": plan.as_dict()}), encoding="utf-8")
    rest = [question for question in plan.questions if question not in done]
    if rest:
        env, _ = environment.scrubbed_environment(1)
        with (
            tempfile.TemporaryDirectory(prefix="attnbench-fusion-") as folder,
            ForkServers(env) as servers,
            _Asker(servers, plan, folder) as asker,
            ThreadPoolExecutor(min(WORKERS, len(rest))) as pool,
        ):
            _ask_all(plan, rest, done, asker, pool, records, say)
    answers = [answer for question in plan.questions for answer in done[question]]
    return Matrix(plan=plan, answers=answers, seconds=time.monotonic() - start)


def _ask_all(
    plan: Plan, rest: Sequence[Question], done: dict[Question, list[Answer]], asker: "_Asker",
    pool: ThreadPoolExecutor, records: Path | None, say: Callable[[str], object],
) -> None:  # fmt: skip
    """Fill `done`; an interrupt gives up the questions in hand and leaves the rest unasked."""
    waiting: set[Future[tuple[Question, list[Answer]]]] = {pool.submit(asker.ask, question) for question in rest}
    told = time.monotonic()
    try:
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                question, answers = future.result()
                done[question] = answers
                if records is not None:
                    with records.open("a", encoding="utf-8") as f:
                        f.write(_line({"answers": [answer.as_dict() for answer in answers]}))
            if time.monotonic() - told > 5.0 or not waiting:
                told = time.monotonic()
                say(f"{len(done)} of {len(plan.questions)} questions answered")
    finally:
        for future in waiting:
            future.cancel()
        if waiting:  # interrupted: nobody waits for the answers in hand
            asker.kill()


class _Asker:
    """Keeps one worker in every thread that asks; a worker that dies costs its question and is replaced."""

    def __init__(self, servers: ForkServers, plan: Plan, folder: str) -> None:
        self._server, self._plan, self._folder = servers.get(_PRELOAD), plan, folder
        try:
            self._server.wait_ready()
        except WorkerError as err:
            raise UnavailableError(f"{err}; pip install {PACKAGES[RTX]} again, attnbench doctor tells more") from err
        self._own = threading.local()
        self._workers: list[Worker] = []

    def __enter__(self) -> "_Asker":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()

    def ask(self, question: Question) -> tuple[Question, list[Answer]]:
        """The answers for every architecture; `failed` with the reason where there is none."""
        try:
            found = self._worker().ask(
                "attnbench.fusion.asking:answers", timeout_s=TIMEOUT_S, question=question.as_dict(),
                archs=list(self._plan.archs), seq_len=self._plan.seq_len, folder=self._folder,
            )  # fmt: skip
            return question, [Answer.from_dict(fields) for fields in found["answers"]]
        except AttnbenchError as err:
            if isinstance(err, WorkerError) and not isinstance(err, ReportedError):
                self._own.worker = None  # dead or killed
            lens = (self._plan.seq_len, 2 * self._plan.seq_len)
            failed = Answer(question=question, arch="", verdict=FAILED, seq_lens=lens, words=str(err))
            return question, [replace(failed, arch=arch) for arch in self._plan.archs]

    def _worker(self) -> Worker:
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = Worker(self._server, memory_limit_bytes=MEMORY_LIMIT_BYTES)
            self._workers.append(worker)
        return worker

    def kill(self) -> None:
        """End every worker at once; the questions in hand fail."""
        for worker in self._workers:
            worker.kill()


def read_plan(records: Path) -> Plan:
    """The plan of records, to go on with.

    Raises:
        RecordsError: the file is not there or not one of ours.
        InputError: its answers are of another compiler than the one that is installed.
        UnavailableError: none is installed.
    """
    try:
        plan = _plan_of(_lines(records)[0]["plan"])
    except (KeyError, TypeError, ValueError) as err:
        raise RecordsError(
            f"{str(records)!r} does not begin with a plan of fusion; ask again into a new folder"
        ) from err
    if (version := installed_version()) != plan.version:
        raise InputError(
            f"{str(records)!r} has answers of {PACKAGES[RTX]} {plan.version}, installed is {version}; ask again into "
            "a new folder"
        )
    return plan


def _plan_of(fields: Any) -> Plan:
    """The inverse of `Plan.as_dict`.

    Raises:
        InputError: a question that cannot be asked.
        KeyError, TypeError, ValueError: it is none of ours.
    """
    archs, seq_len = fields["archs"], fields["seq_len"]
    questions = tuple(Question(**question) for question in fields["questions"])
    is_ours = isinstance(archs, list) and archs and set(archs) <= set(trt_compiler.ARCHS)
    if not is_ours or type(seq_len) is not int or seq_len < MIN_SEQ_LEN or not questions:
        raise ValueError(f"no plan has architectures {archs!r} and T = {seq_len!r} of {len(questions)} questions")
    return Plan(version=str(fields["version"]), archs=tuple(archs), seq_len=seq_len, questions=questions)


def read_answers(records: Path, plan: Plan) -> dict[Question, list[Answer]]:
    """The answers that are whole; those that failed are asked again.

    Raises:
        RecordsError: a line is not one of ours.
    """
    found: dict[Question, list[Answer]] = {}
    for number, line in enumerate(_lines(records)[1:], 2):
        try:
            answers = [Answer.from_dict(fields) for fields in line["answers"]]
        except (KeyError, TypeError, AttributeError) as err:
            raise RecordsError(f"{str(records)!r}, line {number}: not an answer; remove the line") from err
        lens = (plan.seq_len, 2 * plan.seq_len)
        if any(answer.seq_lens != lens for answer in answers):
            raise RecordsError(
                f"{str(records)!r}, line {number}: an answer at other T than {lens}, which the plan asks at; ask again "
                "into a new folder"
            )
        if {answer.arch for answer in answers} == set(plan.archs) and all(a.verdict != FAILED for a in answers):
            found[answers[0].question] = answers
    return found


def _lines(records: Path) -> list[dict[str, Any]]:
    """What was written whole: the last line of a killed run may be torn."""
    try:
        text = records.read_text(encoding="utf-8")
    except OSError as err:
        raise RecordsError(f"cannot read {str(records)!r}: {err.strerror}; name a folder of attnbench fusion") from err
    whole = text[: text.rfind("\n") + 1].splitlines()
    if len(whole) == 0:
        raise RecordsError(f"{str(records)!r} has no whole line; ask again into a new folder")
    try:
        return [json.loads(line) for line in whole]
    except ValueError as err:
        raise RecordsError(f"{str(records)!r} has a line that is no JSON; ask again into a new folder") from err


def _drop_torn_line(records: Path) -> None:
    """What comes next must not be written behind half a line."""
    blob = records.read_bytes()
    if not blob.endswith(b"\n"):
        write_bytes(records, blob[: blob.rfind(b"\n") + 1])


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
