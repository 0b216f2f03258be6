"""Records, resuming, and workers that fail: no compiler is needed."""

import importlib.util
import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.errors import InputError, RecordsError, UnavailableError, WorkerError
from attnbench.files import only_writer
from attnbench.fusion import matrix
from attnbench.fusion.matrix import read_answers, read_plan, run
from attnbench.fusion.questions import Question
from attnbench.fusion.verdicts import FAILED
from tests.fusion.matrices import ARCHS, PLAN, QUESTIONS, made_answer

Asked = list[Question]


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 30.0
    while path.read_text(encoding="utf-8").count("\n") < count:
        assert time.monotonic() < deadline, "answers are not written as they come"
        time.sleep(0.01)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """Workers that answer from a table, or fail at a question; or the user interrupts once three answers are kept."""

    def install(*, interrupt: Path | None = None, fail_at: Question | None = None) -> Asked:
        asked: Asked = []
        killed = threading.Event()

        class Worker:
            def __init__(self, server: object, **_: object) -> None:
                pass

            def ask(self, op: str, *, question: dict[str, object], archs: list[str], **_: object) -> dict[str, object]:
                assert op == "attnbench.fusion.asking:answers"
                found = Question(**question)  # type: ignore[arg-type]
                if interrupt is not None and len(asked) == 3:
                    wait_for_lines(interrupt, 4)
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    assert killed.wait(30.0)
                    raise WorkerError("killed")
                asked.append(found)
                if found == fail_at:
                    raise WorkerError("killed by signal 11 (SIGSEGV)")
                return {"answers": [made_answer(found, arch).as_dict() for arch in archs]}

            def kill(self) -> None:
                killed.set()

            def close(self) -> None:
                pass

        class Servers:
            def __init__(self, env: object) -> None:
                pass

            def __enter__(self) -> "Servers":
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def get(self, preload: object) -> "Servers":
                return self

            def wait_ready(self) -> None:
                pass

        monkeypatch.setattr(matrix, "Worker", Worker)
        monkeypatch.setattr(matrix, "ForkServers", Servers)
        monkeypatch.setattr(matrix, "WORKERS", 1)
        monkeypatch.setattr(matrix, "installed_version", lambda: "9.9")
        return asked

    return install


def test_answers_come_in_the_order_of_the_plan_and_are_all_on_disk(
    tmp_path: Path, workers: Callable[..., Asked]
) -> None:
    workers()
    found = run(PLAN, tmp_path / "r.jsonl", lambda text: None)
    assert [(a.question, a.arch) for a in found.answers] == [(q, arch) for q in QUESTIONS for arch in ARCHS]
    assert found.counts == {"fused": 6, "not fused": 14, "refused": 4}
    assert (found.exit_code, found.compiler) == (0, "tensorrt-rtx 9.9")
    assert read_plan(tmp_path / "r.jsonl") == PLAN
    kept = read_answers(tmp_path / "r.jsonl", PLAN)
    assert [answer for question in QUESTIONS for answer in kept[question]] == found.answers


def test_an_interrupt_keeps_what_is_answered_and_resuming_asks_the_rest_only(
    tmp_path: Path, workers: Callable[..., Asked]
) -> None:
    records = tmp_path / "r.jsonl"
    workers(interrupt=records)
    with pytest.raises(KeyboardInterrupt):
        run(PLAN, records, lambda text: None)
    assert len(read_answers(records, PLAN)) == 3
    with records.open("a", encoding="utf-8") as f:
        f.write('{"answers": [{"dtype": "fp')  # killed while writing
    asked = workers()
    found = run(read_plan(records), records, lambda text: None)
    assert asked == list(QUESTIONS[3:])
    assert len(found.answers) == len(QUESTIONS) * len(ARCHS)
    assert all(json.loads(line) for line in records.read_text(encoding="utf-8").splitlines())


def test_a_worker_that_dies_costs_its_question_which_is_asked_again(
    tmp_path: Path, workers: Callable[..., Asked]
) -> None:
    records = tmp_path / "r.jsonl"
    workers(fail_at=QUESTIONS[1])
    found = run(PLAN, records, lambda text: None)
    failed = [a for a in found.answers if a.verdict == FAILED]
    assert [(a.question, a.arch) for a in failed] == [(QUESTIONS[1], arch) for arch in ARCHS]
    assert failed[0].words == "killed by signal 11 (SIGSEGV)"
    assert found.exit_code == 1
    asked = workers()
    again = run(PLAN, records, lambda text: None)
    assert asked == [QUESTIONS[1]]
    assert (again.exit_code, again.counts) == (0, {"fused": 6, "not fused": 14, "refused": 4})


def test_two_processes_never_answer_into_one_folder(tmp_path: Path, workers: Callable[..., Asked]) -> None:
    asked = workers()
    records = tmp_path / "r.jsonl"
    with only_writer(tmp_path), pytest.raises(InputError, match="is being written by another attnbench process"):
        run(PLAN, records, lambda text: None)
    assert asked == []
    assert not records.exists()
    assert len(run(PLAN, records, lambda text: None).answers) == len(QUESTIONS) * len(ARCHS)


def test_what_a_killed_worker_leaves_is_removed(
    tmp_path: Path, workers: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers()
    made: list[Path] = []

    def ask(self: object, op: str, *, folder: str, **_: object) -> None:
        made.append(Path(folder) / "model.onnx")
        made[-1].write_text("half a graph")
        raise WorkerError("killed by signal 9 (SIGKILL)")

    monkeypatch.setattr(matrix.Worker, "ask", ask)
    assert run(PLAN, None, lambda text: None).exit_code == 1
    assert len(made) == len(QUESTIONS)
    assert not any(path.parent.exists() for path in made)


@pytest.mark.parametrize(
    "change",
    [
        {"archs": ["sm99"]}, {"archs": "sm89"}, {"archs": []}, {"seq_len": "x"}, {"seq_len": -5}, {"questions": []},
        {"seq_len": 4 * PLAN.seq_len}, None,
    ],
)  # fmt: skip
def test_a_plan_that_was_changed_by_hand_is_refused(
    tmp_path: Path, workers: Callable[..., Asked], change: dict[str, object] | None
) -> None:
    asked = workers()
    records = tmp_path / "r.jsonl"
    run(PLAN, records, lambda text: None)
    asked.clear()
    first, *rest = records.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = [1] if change is None else {"plan": json.loads(first)["plan"] | change}
    records.write_text("".join([json.dumps(changed) + "\n", *rest]), encoding="utf-8")
    with pytest.raises(RecordsError, match="ask again into a new folder"):
        run(read_plan(records), records, lambda text: None)
    assert asked == []


@pytest.mark.parametrize("line", ["[]", '{"answers": [5]}', '{"answers": 5}'])
def test_a_line_that_is_no_answer_is_refused(tmp_path: Path, workers: Callable[..., Asked], line: str) -> None:
    workers()
    records = tmp_path / "r.jsonl"
    run(PLAN, records, lambda text: None)
    with records.open("a", encoding="utf-8") as f:
        f.write(f"{line}\n")
    with pytest.raises(RecordsError, match=r"line \d+: not an answer; remove the line"):
        read_answers(records, PLAN)


def test_records_of_another_version_or_kind_are_refused(
    tmp_path: Path, workers: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers()
    records = tmp_path / "r.jsonl"
    run(PLAN, records, lambda text: None)
    monkeypatch.setattr(matrix, "installed_version", lambda: "10.0")
    with pytest.raises(InputError, match=r"has answers of tensorrt-rtx 9.9, installed is 10.0; ask again"):
        read_plan(records)
    for text, words in (("", "no whole line"), ("{}\n", "does not begin with a plan"), ("x\n", "no JSON")):
        records.write_text(text, encoding="utf-8")
        with pytest.raises(RecordsError, match=words):
            read_plan(records)
    with pytest.raises(RecordsError, match="name a folder of attnbench fusion"):
        read_plan(tmp_path / "none.jsonl")


def test_without_the_compiler_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="pip install tensorrt-rtx"):
        matrix.installed_version()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else object())
    with pytest.raises(UnavailableError, match="onnx not installed, so no graph can be written"):
        matrix.installed_version()
