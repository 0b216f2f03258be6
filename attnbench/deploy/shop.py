"""The workers of an export or a verification: each question goes to a fresh process under a memory limit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attnbench.measure import environment
from attnbench.sweep.workers import ForkServer, ForkServers, Worker

TASKS = "attnbench.sweep.tasks"  # of every worker
WITH_TORCH = ("torch", "attnbench.torch_model")
# What most of ours ask for: one import serves both.
WITH_EXPORTERS = ("torch", "onnx", "onnxscript", "torch.onnx", "attnbench.late_imports")
# Loading a .pt2 imports torch._dynamo: 2 s, once instead of in every worker.
PROGRAMS: dict[tuple[str, ...], tuple[str, ...]] = {("torch",): ("torch", "torch._dynamo")}
TIMEOUT_S = 300.0  # of one question; exporting takes seconds, a runtime may compile for minutes
MEMORY_LIMIT_BYTES = 16 << 30


class Shop:
    """Asks workers."""

    def __init__(self, servers: ForkServers, memory_limit_bytes: int | None = None) -> None:
        self._servers, self._memory_limit_bytes = servers, memory_limit_bytes or MEMORY_LIMIT_BYTES

    def warm_up(self, *preloads: Sequence[str]) -> None:
        """Start importing what will be asked for."""
        for preload in preloads:
            self._server(preload)

    def _server(self, preload: Sequence[str]) -> ForkServer:
        return self._servers.get((*PROGRAMS.get(tuple(preload), preload), TASKS))

    def ask(self, op: str, *, preload: Sequence[str], **fields: Any) -> dict[str, Any]:
        """The answer to one question.

        Args:
            op: a method of `sweep.tasks.Tasks`, or `module:function`.
            preload: what the worker has imported.
            fields: arguments of the function, as JSON.

        Raises:
            AttnbenchError: what the worker told, or how it ended.
        """
        with Worker(self._server(preload), memory_limit_bytes=self._memory_limit_bytes) as worker:
            return worker.ask(op, timeout_s=TIMEOUT_S, **fields)


@contextmanager
def open_shop(memory_limit_bytes: int | None = None) -> Iterator[Shop]:
    """A shop whose workers end with the block."""
    env, _ = environment.scrubbed_environment(1)
    with ForkServers(env) as servers:
        yield Shop(servers, memory_limit_bytes)
