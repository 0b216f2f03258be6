"""The notebook runs from a fresh kernel of this interpreter, and is committed without outputs."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is in the dev extra: make setup")
nbclient = pytest.importorskip("nbclient", reason="nbclient is in the dev extra: make setup")

NOTEBOOK = Path(__file__).parents[1] / "docs" / "attnbench.ipynb"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel of the interpreter that runs this test, whatever kernels the machine has."""
    spec = tmp_path / "jupyter" / "kernels" / "attnbench-test"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "test", "language": "python"}), encoding="utf-8"
    )
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    return "attnbench-test"


def printed(cell: Any) -> str:
    """Everything that a cell wrote to stderr."""
    return "".join(output["text"] for output in cell.outputs if output.get("name") == "stderr")


def test_the_notebook_is_committed_without_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(kernel: str, tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name=kernel, resources={"metadata": {"path": str(tmp_path)}}
    )
    asyncio.run(client.async_execute())
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [printed(cell) for cell in code if printed(cell)] == []
    shown = {kind for cell in code for output in cell.outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= shown
