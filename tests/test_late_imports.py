"""What is imported before a fork, so that not every worker has to."""

import json
import subprocess
import sys
from pathlib import Path

from attnbench import late_imports
from attnbench.deploy import shop
from attnbench_exporters.attention import OnnxAttention
from attnbench_exporters.decomposed import OnnxDecomposed

EXPORT = """
import importlib, json, sys, threading
from pathlib import Path
from attnbench import late_imports, plugins
from attnbench.problem import Problem
exporter = plugins.load_exporter("onnx-attention")
for name in exporter.preload:
    importlib.import_module(name)
missing = [name for name in late_imports.NAMES if name not in sys.modules]
before, threads = set(sys.modules), threading.active_count()
exporter.export(Problem.make(seq_len=8, num_heads=2, head_dim=8), 23, Path(sys.argv[1]), seed=0)
print(json.dumps({"missing": missing, "threads": threads, "late": sorted(set(sys.modules) - before)}))
"""


def test_an_export_after_it_imports_next_to_nothing_and_it_starts_no_thread(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", EXPORT, str(tmp_path / "x.onnx")], capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["missing"] == []  # of the torch that CI tests
    assert found["threads"] == 1  # a process with threads cannot be forked safely
    assert len(found["late"]) < 100, found["late"]  # 800 without it


def test_what_this_torch_does_not_have_is_left_out() -> None:
    source = Path(late_imports.__file__).read_text(encoding="utf-8").replace("torch._dynamo", "torch.no_such_module")
    names: dict[str, object] = {}
    exec(compile(source, "late_imports", "exec"), names)
    assert "torch.no_such_module" in str(names["NAMES"])
    assert "torch.no_such_module" not in sys.modules


def test_one_forkserver_serves_the_exporters_and_what_else_writes_files() -> None:
    assert OnnxAttention.preload == OnnxDecomposed.preload == shop.WITH_EXPORTERS
