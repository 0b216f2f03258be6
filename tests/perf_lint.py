"""How long does the linter take on an encoder of BERT base's shape? `make perf` prints it; nothing is asserted."""

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

from attnbench.deploy.rtx import require_builder
from attnbench.errors import UnavailableError
from attnbench.fusion.linter import lint

NUM_LAYERS, EMBED_DIM, NUM_HEADS, FFN_DIM = 12, 768, 12, 3072
BAR_S = 15.0


def export(path: Path) -> None:
    """torch's own encoder in fp16, with free batch and length."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS, FFN_DIM, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, NUM_LAYERS, enable_nested_tensor=False).half().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (torch.zeros(2, 16, EMBED_DIM, dtype=torch.float16),), str(path), dynamo=True, verbose=False,
            dynamic_shapes=({0: "batch", 1: "seq"},), external_data=False,
        )  # fmt: skip


if __name__ == "__main__":
    try:
        require_builder()
    except UnavailableError as err:
        sys.stdout.write(f"the linter is not measured: {err}\n")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        export(path)
        start = time.perf_counter()
        report = lint(path)
        elapsed_s = time.perf_counter() - start
    used = os.times()
    sys.stdout.write(
        f"{report.text()}\n{NUM_LAYERS} layers linted in {elapsed_s:.1f} s (bar {BAR_S:.0f} s: "
        f"{'met' if elapsed_s <= BAR_S else 'MISSED'}), {used.children_user + used.children_system:.1f} s of CPU in "
        f"workers, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n"
    )
