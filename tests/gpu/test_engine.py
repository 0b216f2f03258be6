"""An engine that was compiled on this GPU, opened again as a user's."""

from pathlib import Path

import pytest
from onnx import TensorProto

from attnbench import api, plugins, trt_compiler
from attnbench.errors import InputError
from tests.model_bench import models

pytestmark = pytest.mark.gpu
NAMES = {trt_compiler.PACKAGES[module]: module for module in (trt_compiler.TRT, trt_compiler.RTX)}


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_agrees_with_the_file_that_it_was_compiled_from(
    device: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    probe = plugins.probe("runtime", name)
    if not probe.available or probe.compiles_only:
        pytest.skip(f"{name}: {probe.reason or probe.compiles_only}")
    monkeypatch.setattr("attnbench.sweep.plan.Budget.timing_s", lambda *_: 0.0)
    onnx = models.save_attention(tmp_path / "m.onnx", kind=TensorProto.FLOAT)
    shapes = {"x": ((1, 1, 64), (2, 64, 64), (4, 128, 64))}
    made = trt_compiler.compile_onnx(onnx, shapes=shapes, arch=None, module=NAMES[name])
    assert made.engine is not None, made.words
    plan = tmp_path / "m.plan"
    plan.write_bytes(made.engine)
    sizes = {"bind": {"seq": "T"}, "sizes": {"batch": 2}, "runtimes": ["ort-cpu", name]}
    run = api.bench(engine=plan, onnx=onnx, seq_lens=[7, 128], out=tmp_path / "run", device=device, **sizes)  # type: ignore[arg-type]
    assert [(r.arm, r.status, r.reason) for r in run.rows] == [
        ("file@ort-cpu", "ok", ""), (f"engine@{name}", "ok", "")
    ] * 2  # fmt: skip
    facts = run.manifest["model"]["facts"]["engine"]["facts"]
    assert facts["profiles"] == [{"x": [list(shape) for shape in shapes["x"]]}]
    with pytest.raises(InputError, match="x of shape 2x129x64 is outside of the engine's profile"):
        api.bench(engine=plan, onnx=onnx, seq_lens=[129], out=tmp_path / "no", device=device, **sizes)  # type: ignore[arg-type]
