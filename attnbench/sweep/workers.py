"""Worker processes as the parent sees them: ask a question, get an answer, a death or a time-out; never hang."""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from attnbench import errors
from attnbench.errors import (
    AttnbenchError,
    ExportError,
    InputError,
    NotRunError,
    ReadBackError,
    UnavailableError,
    UnsupportedError,
    UntrustedModelError,
    WorkerCrashed,
    WorkerError,
    WorkerOutOfMemory,
    WorkerTimeout,
)
from attnbench.sweep.log import Log, looks_like_oom

MAX_ANSWER_BYTES = 64 << 20
START_TIMEOUT_S = 60.0  # importing torch on a cold disk
DEATH_TIMEOUT_S = 5.0


class ForkServer:
    """The parent's end of one zygote process (see `attnbench.sweep.zygote`)."""

    def __init__(self, preload: Sequence[str], env: Mapping[str, str], program: Sequence[str] = ()) -> None:
        self.preload = tuple(preload)
        self.sock, child = socket.socketpair()
        self._lock = threading.RLock()  # two workers may be loaded at once, each by its own thread
        self.exits: dict[int, int] = {}
        self._buffer = b""
        self._answers: list[dict[str, Any]] = []
        self._python = program[0] if program else ""
        command = [*(program or (sys.executable, "-P", "-m")), "attnbench.sweep.zygote"]
        self.process = subprocess.Popen(
            [*command, str(child.fileno()), str(os.getpid()), *self.preload],
            env=dict(env),
            pass_fds=(child.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        child.close()
        self._ready = False

    def wait_ready(self) -> None:
        """Block until the imports are done.

        Raises:
            WorkerError: the imports failed or took over a minute; the message holds the last line of the error.
        """
        with self._lock:
            if not self._ready:
                self._wait_for_imports()

    def _wait_for_imports(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers:
            if not self.pump(max(0.0, deadline - time.monotonic())):
                self.process.kill()
                assert self.process.stderr is not None
                lines = self.process.stderr.read().decode(errors="replace").strip().splitlines()
                where = f" in {self._python}" if self._python else ""
                raise WorkerError(
                    f"cannot start workers that import {self.preload}{where}: {lines[-1] if lines else 'no word'}"
                )
        self._answers.pop(0)
        self._ready = True

    def pump(self, timeout_s: float) -> bool:
        """Take what the zygote has sent; False when it is gone or nothing came in time."""
        with self._lock:
            self.sock.settimeout(timeout_s if timeout_s > 0 else 0.000001)
            try:
                data = self.sock.recv(65536)
            except (TimeoutError, ConnectionError):
                return False
            if not data:
                return False
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "exit" in message:
                    self.exits[message["exit"]] = message["status"]
                else:
                    self._answers.append(message)
            return True

    def fork(self, fds: Sequence[int], memory_limit_bytes: int | None) -> int:
        """A fresh worker that owns the descriptors; its pid."""
        with self._lock:
            self.wait_ready()
            order = json.dumps({"fork": {"memory_limit_bytes": memory_limit_bytes}}).encode()
            self.sock.settimeout(START_TIMEOUT_S)
            with contextlib.suppress(ConnectionError):  # its end is noticed below
                socket.send_fds(self.sock, [order], list(fds))
            deadline = time.monotonic() + START_TIMEOUT_S
            while not self._answers:
                if not self.pump(max(0.0, deadline - time.monotonic())):
                    raise WorkerError("the forkserver is gone or does not answer")
            return int(self._answers.pop(0)["pid"])

    def close(self) -> None:
        """End the zygote; its workers die with it."""
        self.sock.close()
        if self.process.stderr is not None:
            self.process.stderr.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Worker:
    """One worker process. Use as a context manager: leaving it ends the process and everything it started."""

    def __init__(
        self, server: ForkServer, *, memory_limit_bytes: int | None = None, log_path: Path | None = None
    ) -> None:
        self.server = server
        self.log = Log()
        self.log_path = log_path
        self.exit_status: int | None = None
        self._killed = False
        self._oom_kills_before = _kernel_oom_kills()
        request_read, self._requests = os.pipe()
        self._responses, response_write = os.pipe()
        self._log_read, log_write = os.pipe()
        child_ends = (request_read, response_write, log_write)
        try:
            self.pid = server.fork(child_ends, memory_limit_bytes)
        except WorkerError:
            for fd in (self._requests, self._responses, self._log_read):
                os.close(fd)
            raise
        finally:
            for fd in child_ends:
                os.close(fd)
        self._buffer = b""
        os.set_blocking(self._log_read, False)
        os.set_blocking(self._responses, False)
        self._selector = selectors.DefaultSelector()
        for fd in (self._responses, self._log_read, server.sock.fileno()):
            self._selector.register(fd, selectors.EVENT_READ)

    def __enter__(self) -> "Worker":
        """The worker itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        """End the process."""
        self.close()

    def ask(self, op: str, *, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            WorkerTimeout: no answer within timeout_s; the worker and all it started are killed.
            WorkerCrashed: it died; the message names the signal or exit code.
            WorkerOutOfMemory: it could not get memory.
            AttnbenchError: what the worker itself reported (unsupported, read-back, ...).
        """
        request = json.dumps({"op": op, **arguments}).encode() + b"\n"
        try:
            os.write(self._requests, request)
        except BrokenPipeError:
            raise self._death(op) from None
        line = self._wait_for_line(op, time.monotonic() + timeout_s, timeout_s)
        try:
            answer = json.loads(line)
        except ValueError as err:
            self.kill()
            raise WorkerError(f"no result: the answer to {op!r} is not whole JSON ({line[:60]!r})") from err
        if not isinstance(answer, dict) or not ("result" in answer or "error" in answer):
            self.kill()
            raise WorkerError(f"no result: the answer to {op!r} has no result ({line[:60]!r})")
        if "error" in answer:
            raise as_exception(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _wait_for_line(self, op: str, deadline: float, timeout_s: float) -> bytes:
        while True:
            if b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                return line
            if len(self._buffer) > MAX_ANSWER_BYTES:
                self.kill()
                raise WorkerError(f"no result: the answer to {op!r} is longer than {MAX_ANSWER_BYTES} bytes")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self.kill()
                raise WorkerTimeout(f"no answer to {op!r} within {timeout_s:.3g} s; the worker was killed")
            if not self._pump(remaining) or self.pid in self.server.exits:
                self._pump(0.0)
                if b"\n" not in self._buffer:
                    raise self._death(op)

    def _pump(self, timeout_s: float) -> bool:
        """Take what came on any channel; False when the response channel has ended."""
        open_channel = True
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._log_read:
                self._drain_log()
            elif key.fd == self._responses:
                chunk = os.read(self._responses, 1 << 16)
                open_channel = open_channel and bool(chunk)
                self._buffer += chunk
            else:
                self.server.pump(0.0)
        return open_channel

    def _drain_log(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                chunk = os.read(self._log_read, 1 << 16)
                if not chunk:
                    self._selector.unregister(self._log_read)
                    return
                self.log.add(chunk)

    def _death(self, op: str) -> WorkerError:
        """What to raise for a worker that ended (or closed its channel) instead of answering."""
        self._await_exit(DEATH_TIMEOUT_S)
        self.kill()
        status = self.exit_status
        half = f" after half an answer ({self._buffer[:40]!r})" if self._buffer else ""
        if status is None:
            return WorkerError(f"no result: the worker closed its channel during {op!r}{half}")
        if os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
            return WorkerError(f"no result: the worker exited with code {code} during {op!r} without an answer{half}")
        number = os.WTERMSIG(status)
        name = f"killed by signal {number} ({signal.Signals(number).name}) during {op!r}"
        if looks_like_oom(self.log.text()):
            return WorkerOutOfMemory(f"{name}; its last words were of missing memory")
        if number == signal.SIGKILL and _kernel_oom_kills() > self._oom_kills_before:
            return WorkerOutOfMemory(f"{name} by the kernel's out-of-memory killer")
        return WorkerCrashed(name)

    def _await_exit(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.exit_status is None:
            if self.pid in self.server.exits:
                self.exit_status = self.server.exits.pop(self.pid)
                break
            remaining = deadline - time.monotonic()
            if remaining <= 0 or (
                not self.server.pump(min(remaining, 0.05)) and self.server.process.poll() is not None
            ):
                break
        if not self._closed:
            with contextlib.suppress(KeyError):
                self._drain_log()

    @property
    def _closed(self) -> bool:
        return self._requests < 0

    def kill(self) -> None:
        """SIGKILL the worker and everything it started."""
        if self.exit_status is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree = psutil.Process(self.pid).children(recursive=True)
                for process in tree:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._await_exit(DEATH_TIMEOUT_S)

    def close(self) -> None:
        """Ask the worker to leave, then make it; keep its log. May be called twice."""
        if self._closed:
            return
        if self.exit_status is None and self.pid not in self.server.exits:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._requests, b'{"op": "exit"}\n')
            self._await_exit(0.5)
        self.kill()
        with contextlib.suppress(KeyError):
            self._drain_log()
        self._selector.close()
        for fd in (self._requests, self._responses, self._log_read):
            os.close(fd)
        self._requests = -1
        if self.log_path is not None and self.log.total_bytes:
            with self.log_path.open("a", encoding="utf-8", errors="replace") as f:
                f.write(self.log.text())


class ForkServers:
    """One zygote per interpreter and set of preloaded modules, all with the same variables; started when first needed.

    One thread starts them all and lives as long as they: the kernel kills a zygote with the thread that made it.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)
        self._servers: dict[tuple[tuple[str, ...], tuple[str, ...]], ForkServer] = {}
        self._lock = threading.Lock()
        self._dead: list[ForkServer] = []  # replaced; closed at the end, since their last workers may still look
        self._starter = ThreadPoolExecutor(max_workers=1)

    def get(self, preload: Sequence[str], program: Sequence[str] = ()) -> ForkServer:
        """The zygote that has these modules imported (it may still be importing).

        program: the command that runs a module of attnbench, where it is another interpreter that runs it.
        """
        key = (tuple(preload), tuple(program))
        with self._lock:
            server = self._servers.get(key)
            if server is None or server.process.poll() is not None:
                self._dead += [] if server is None else [server]
                server = self._servers[key] = self._starter.submit(ForkServer, key[0], self.env, key[1]).result()
            return server

    def __enter__(self) -> "ForkServers":
        """The collection itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        """End every zygote and with them every worker."""
        for server in (*self._servers.values(), *self._dead):
            server.close()
        self._starter.shutdown()


_TOLD: tuple[type[AttnbenchError], ...] = (
    UnsupportedError, UnavailableError, ReadBackError, NotRunError, WorkerOutOfMemory,
    InputError, UntrustedModelError, ExportError, *ExportError.__subclasses__(),
)  # fmt: skip
_EXCEPTIONS = {c.__name__: c for c in _TOLD}


class ReportedError(WorkerError):
    """The worker caught an exception of the plug-in and told it."""


def as_exception(error: Any) -> AttnbenchError:
    """What the worker told, as an exception; the library's own words, where they differ, are its note."""
    told = error if isinstance(error, dict) else {"message": error}
    kind, message, cause = (str(told.get(name, "")) for name in ("kind", "message", "cause"))
    found: AttnbenchError
    if kind in _EXCEPTIONS:
        found = _EXCEPTIONS[kind](message)
    elif kind == "MemoryError" or looks_like_oom(message):
        found = WorkerOutOfMemory(message)
    else:
        is_ours = not kind or hasattr(errors, kind)  # its message needs no name of a class before it
        found = ReportedError(message if is_ours else f"{kind}: {message}")
    if cause and cause not in message:
        found.add_note(cause)
    return found


def _kernel_oom_kills() -> int:
    """How often this kernel's OOM killer has struck (0 where it does not tell)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
