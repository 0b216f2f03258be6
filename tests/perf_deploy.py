"""Seconds to export the default block as a bundle, all checks included, and to verify it; nothing is asserted."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGETS = {"onnxruntime-cpu": "onnx-blocked", "openvino": "onnx-attention", "torch": "auto"}
ATTNBENCH = Path(sys.executable).with_name("attnbench")


def seconds_of(command: list[object]) -> float:
    """Wall time of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="attnbench-perf-") as folder:
        for target, recipe in TARGETS.items():
            out = Path(folder) / target
            asked = ["--variant", "causal", "--target", target, "--recipe", recipe, "-o", out]
            exported = [seconds_of([ATTNBENCH, "export", *asked]) for _ in range(3)]
            verified = [seconds_of([sys.executable, out / "verify.py"]) for _ in range(3)]
            size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
            sys.stdout.write(
                f"{target:16} export {min(exported):.1f} to {max(exported):.1f} s (bar: 10 s), "
                f"verify.py {min(verified):.1f} to {max(verified):.1f} s (bar: 5 s), {size / 1e6:.1f} MB\n"
            )
