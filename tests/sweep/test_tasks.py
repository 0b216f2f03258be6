"""What a worker believes of a plug-in: what it finds, not what it is told."""

from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from attnbench import plugins
from attnbench.errors import ExportError
from attnbench.problem import Problem
from attnbench.sweep.tasks import Tasks

PROBLEM = Problem.make(seq_len=8, num_heads=2, head_dim=8)


class OtherOpset:
    """Writes a file of opset 18 and says that it has the one asked."""

    def __init__(self, content: bytes | None = None) -> None:
        self.real, self.content = plugins.load_exporter("onnx-decomposed"), content

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Any:
        made = self.real.export(problem, 18, path, seed=seed)
        if self.content is not None:
            path.write_bytes(self.content)
        return replace(made, opset=opset, sha256=sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize(
    ("content", "found"), [(None, "asked for opset 20, its file has 18"), (b"", "its file has none")]
)
def test_the_opset_is_read_from_the_file(
    content: bytes | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = OtherOpset(content)
    monkeypatch.setattr(plugins, "load_exporter", lambda name: liar)
    with ExitStack() as stack, pytest.raises(ExportError, match=found):
        Tasks(stack).export(exporter="liar", problem=PROBLEM.as_dict(), opset=20, path=str(tmp_path / "m.onnx"), seed=0)
