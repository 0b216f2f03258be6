"""A forkserver for one environment: imports once, then forks a fresh worker in milliseconds.

Run as `python -P -m attnbench.sweep.zygote FD MODULE...`. FD is a Unix stream socket to the parent process of the run.
The parent sends `{"fork": {...}}` with three file descriptors (requests, responses, log); the answers are `{"pid": n}`
and, when a worker has ended, `{"exit": pid, "status": wait status}`. Nothing but imports happens before a fork, since a
process that has run tensor code cannot be forked safely. The zygote dies with the parent and takes its workers along.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ON_LINUX = sys.platform.startswith("linux")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux); leave at once if it is already gone."""
    if ON_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def limit_memory(limit_bytes: int | None) -> None:
    """Cap this process's private memory: RLIMIT_DATA on Linux (private writable pages), else the address space."""
    if limit_bytes is not None:
        which = resource.RLIMIT_DATA if ON_LINUX else resource.RLIMIT_AS
        resource.setrlimit(which, (limit_bytes, limit_bytes))


class Zygote:
    """The loop of the forkserver process."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.workers: set[int] = set()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        os.set_blocking(self.wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def send(self, message: dict[str, Any]) -> None:
        """One JSON line to the parent."""
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        """Fork on request and report deaths until the parent closes its end."""
        self.send({"ready": os.getpid()})
        while True:
            waiting: list[Any] = [self.control, self.wake_read]
            readable, _, _ = select.select(waiting, [], [])
            if self.wake_read in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
                self.reap()
            if self.control in readable:
                data, fds, _, _ = socket.recv_fds(self.control, 65536, 3)
                if not data:
                    return
                self.fork(json.loads(data)["fork"], fds)

    def fork(self, order: dict[str, Any], fds: list[int]) -> None:
        """Fork one worker that owns `fds` and runs `attnbench.sweep.worker.main`."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(parent, order, fds)
        for fd in fds:
            os.close(fd)
        self.workers.add(pid)
        self.send({"pid": pid})

    def _become_worker(self, parent: int, order: dict[str, Any], fds: list[int]) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            die_with_parent(parent)
            requests, responses, log = fds
            os.dup2(log, 1)
            os.dup2(log, 2)
            for fd in (log, self.control.fileno(), self.wake_read, self.wake_write):
                os.close(fd)
            limit_memory(order.get("memory_limit_bytes"))
            from attnbench.sweep import worker

            code = worker.main(requests, responses)
        finally:
            os._exit(code)

    def reap(self) -> None:
        """Report every worker that has ended; kill what a dead worker left behind (it is reparented to us)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            if pid in self.workers:
                self.workers.discard(pid)
                self.send({"exit": pid, "status": status})
        for orphan in self._children() - self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)

    def _children(self) -> set[int]:
        path = Path(f"/proc/self/task/{os.getpid()}/children")
        return {int(p) for p in path.read_text().split()} if path.exists() else set()


def main(argv: list[str]) -> int:
    """Import the modules named, then serve."""
    control = socket.socket(fileno=int(argv[0]))
    die_with_parent(int(argv[1]))
    if ON_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in argv[2:]:
        importlib.import_module(module)
    zygote = Zygote(control)
    # The parent closing its end ends the process group of workers through PR_SET_PDEATHSIG.
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        zygote.serve()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
