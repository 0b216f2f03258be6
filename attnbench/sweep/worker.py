"""The loop of a worker process: a request line in, an answer line out, nothing else on that channel.

Parked in a blocking read between requests, so that it costs nothing while another worker is timed.
"""

import gc
import importlib
import json
import os
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from attnbench.sweep.tasks import Tasks


def main(requests_fd: int, responses_fd: int) -> int:
    """Answer requests until told to exit or the parent is gone; the exit code."""
    gc.disable()
    gc.freeze()  # what the forkserver imported lives as long as this process: no collection need look at it
    os.set_inheritable(responses_fd, False)
    with os.fdopen(requests_fd, "rb") as requests, ExitStack() as stack:
        tasks = Tasks(stack)
        for line in requests:
            request = json.loads(line)
            op = request.pop("op")
            if op == "exit":
                # Destructors of native libraries may hang or crash; nothing of value is left in this process.
                return 0
            _send(responses_fd, _answer(tasks, op, request))
    return 0


def _answer(tasks: Tasks, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": _task(tasks, op)(**arguments)}
    except BaseException as err:  # the worker's top level: whatever a plug-in raises becomes a record
        if isinstance(err, SystemExit | KeyboardInterrupt):
            raise
        traceback.print_exc()
        message = str(err).strip() or repr(err)
        cause = "" if err.__cause__ is None else str(err.__cause__).strip()
        return {"error": {"kind": type(err).__name__, "message": message, "cause": cause}}


def _task(tasks: Tasks, op: str) -> Callable[..., dict[str, Any]]:
    """A method of Tasks, or `module:function`: so layers above the sweep have tasks of their own."""
    module, _, function = op.rpartition(":")
    found: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module) if module else tasks, function)
    return found


def _send(fd: int, answer: dict[str, Any]) -> None:
    # A text that is not UTF-8 (a path, a library's message) holds surrogates, which no file of records could hold.
    blob = memoryview(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    while blob:
        blob = blob[os.write(fd, blob) :]
