"""Runs one attention case in its runtime and says how far its outputs are from the expected ones.

Needs Python 3.11 or newer, numpy and the runtime (versions.json), nothing else:

    python run.py               prints the errors; exit code 0: within what is allowed, 1: not
    python run.py --write-raw   writes every input as NAME.bin, for trtexec

polygraphy takes this file as its --data-loader-script. Arrays are .npz without pickle; bfloat16 is kept as its 16 bits
in uint16. Large inputs are not stored: they are drawn again from the seed, by `draw` below.
"""

import hashlib
import importlib
import json
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
# How an array is held here.
RAW = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "bool": np.bool_, "int64": np.int64}
ONNX_TYPE = {"bool": 9, "fp32": 1, "fp16": 10, "bf16": 16, "int64": 7}  # onnx.TensorProto.DataType
OPENVINO_TYPE = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
BACKENDS = {"flash": "FLASH_ATTENTION", "math": "MATH", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
CHUNK = 1 << 18  # numbers drawn at a time


# ---- arrays


def draw(seed: int, name: str, spec: dict[str, Any]) -> Any:
    """The array of this seed and name: normal numbers, a boolean mask, or ALiBi's biases."""
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16]
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    shape = tuple(spec["shape"])
    if spec["draw"] == "bool":
        allowed = generator.random(shape, dtype=np.float32) < 0.75
        allowed[..., 0] = True
        return allowed
    if spec["draw"] == "alibi":
        heads, q_len, kv_len = shape[-3:]
        slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
        distance = np.abs(np.arange(q_len)[:, None] - np.arange(kv_len))
        return rounded((-slopes[:, None, None] * distance)[None], spec["kind"])
    array = np.empty(shape, RAW[spec["kind"]])
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        piece = flat[start : start + CHUNK]
        values = generator.standard_normal(piece.size, dtype=np.float32) * np.float32(spec["std"])
        piece[...] = rounded(values, spec["kind"])
    return array


def rounded(values: Any, kind: str) -> Any:
    """To fp32, fp16 or bf16 (as its 16 bits), to nearest even."""
    if kind != "bf16":
        return values.astype(RAW[kind])
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_float64(array: Any, kind: str) -> Any:
    """The numbers that an array means."""
    if kind == "bf16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def read_case() -> dict[str, Any]:
    """What is to be run."""
    case: dict[str, Any] = json.loads((HERE / "case.json").read_text(encoding="utf-8"))
    return case


def read_arrays(case: dict[str, Any], which: str) -> dict[str, Any]:
    """The `inputs` or `weights`, from the file or from the seed."""
    if not case["stored"]:
        return {name: draw(case["seed"], name, spec) for name, spec in case[which].items()}
    if not case[which]:
        return {}
    with np.load(HERE / f"{which}.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in case[which]}


def load_data() -> Iterator[dict[str, Any]]:
    """One set of inputs, as polygraphy wants it."""
    yield read_arrays(read_case(), "inputs")


# ---- runtimes: inputs and weights in, outputs by name out


def empty_outputs(case: dict[str, Any]) -> dict[str, Any]:
    """What a runtime writes into."""
    return {name: np.empty(spec["shape"], RAW[spec["kind"]]) for name, spec in case["outputs"].items()}


def run_onnxruntime(case: dict[str, Any], inputs: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """By ONNX Runtime on the CPU; inputs and outputs bound in place."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case["threads"], 1
    options.enable_mem_pattern = False
    session = ort.InferenceSession(str(HERE / "model.onnx"), options, providers=["CPUExecutionProvider"])
    outputs = empty_outputs(case)
    io = session.io_binding()
    for name, array in inputs.items():
        kind = ONNX_TYPE[case["inputs"][name]["kind"]]
        io.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind))
    for name, array in outputs.items():
        kind = ONNX_TYPE[case["outputs"][name]["kind"]]
        io.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind))
    session.run_with_iobinding(io)
    return outputs


def run_openvino(case: dict[str, Any], inputs: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """By OpenVINO on the CPU, in the precision of the file where the processor has it, unless it was to choose."""
    import openvino as ov

    core = ov.Core()
    there = case["dtype"].upper() in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    properties = {"INFERENCE_NUM_THREADS": case["threads"], "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    if case["options"].get("inference_precision") != "default":
        properties["INFERENCE_PRECISION_HINT"] = OPENVINO_TYPE[case["dtype"] if there else "fp32"]
    compiled = core.compile_model(core.read_model(str(HERE / "model.onnx")), "CPU", properties)
    request = compiled.create_infer_request()
    outputs = empty_outputs(case)
    kinds = {name: spec["kind"] for name, spec in (case["inputs"] | case["outputs"]).items()}
    for name, array in {**inputs, **outputs}.items():
        is_bf16 = kinds[name] == "bf16"
        tensor = ov.Tensor(array, list(array.shape), ov.Type.bf16) if is_bf16 else ov.Tensor(array, shared_memory=True)
        request.set_tensor(name, tensor)
    request.infer(share_outputs=True)
    return outputs


def run_onnx_reference(case: dict[str, Any], inputs: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """By onnx's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    def of_onnx(array: Any, kind: str) -> Any:
        return array.view(importlib.import_module("ml_dtypes").bfloat16) if kind == "bf16" else array

    feeds = {name: of_onnx(array, case["inputs"][name]["kind"]) for name, array in inputs.items()}
    found = ReferenceEvaluator(str(HERE / "model.onnx")).run(list(case["outputs"]), feeds)
    arrays = dict(zip(case["outputs"], map(np.asarray, found), strict=True))
    return {n: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for n, a in arrays.items()}


def run_torch(case: dict[str, Any], inputs: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """By PyTorch on the CPU."""
    import torch

    def of_torch(array: Any, kind: str) -> Any:
        return torch.from_numpy(array).view(torch.bfloat16) if kind == "bf16" else torch.from_numpy(array)

    torch.set_num_threads(case["threads"])
    kinds = {name: spec["kind"] for name, spec in {**case["inputs"], **case["weights"]}.items()}
    tensors = {name: of_torch(array, kinds[name]) for name, array in {**inputs, **weights}.items()}
    compute = torch.compile(torch_block, dynamic=False) if case["compiled"] else torch_block
    attention = torch.nn.attention
    backend = case["options"].get("backend")
    pinned = (
        nullcontext() if backend is None else attention.sdpa_kernel(getattr(attention.SDPBackend, BACKENDS[backend]))
    )
    with torch.inference_mode(), pinned:
        y = compute(case, tensors)
    return {"y": (y.view(torch.uint16) if y.dtype == torch.bfloat16 else y).numpy()}


def torch_block(case: dict[str, Any], t: Any) -> Any:
    """The block, or its core alone: (B, T_q, E) or (B, H, T_q, D)."""
    import torch

    heads, kv_heads = case["num_heads"], case["num_kv_heads"]
    if case["part"] == "core":
        return torch_attention(case, t["q"], t["k"], t["v"], t.get("mask"))
    query, context = t.get("query", t.get("x")), t.get("context", t.get("x"))

    def project(x: Any, letter: str, count: int) -> Any:
        y = torch.nn.functional.linear(x, t[f"w_{letter}"].T.contiguous(), t.get(f"b_{letter}"))
        return y.unflatten(-1, (count, -1)).transpose(1, 2)  # (B, count, T, D)

    q, k, v = project(query, "q", heads), project(context, "k", kv_heads), project(context, "v", kv_heads)
    if case["variant"] == "decode":
        k, v = torch.cat([t["past_key"], k], dim=2), torch.cat([t["past_value"], v], dim=2)
    y = torch_attention(case, q, k, v, t.get("mask"))  # (B, H, T_q, D_v)
    if case["value_map"] == "low_rank":  # every head lifts its values itself
        y = (y @ t["w_o"].unflatten(0, (heads, -1))).sum(1)  # (B, T_q, E)
        return y + t["b_o"] if "b_o" in t else y
    y = y.transpose(1, 2).flatten(2)  # (B, T_q, H D_v)
    return torch.nn.functional.linear(y, t["w_o"].T.contiguous(), t.get("b_o"))


def torch_attention(case: dict[str, Any], q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Attention written out, or by PyTorch's fused operator."""
    import torch

    rule, window, scale = case["rule"], case["window"], case["scale"]
    allowed = None
    if rule:
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        i = i + (k.shape[-2] - q.shape[-2] if rule == "causal_bottom_right" else 0)
        allowed = (j <= i) if window is None else (j <= i) & (j > i - window)
    is_bool = mask is not None and mask.dtype == torch.bool
    if case["attention"] == "sdpa":
        is_causal = rule == "causal_top_left" and mask is None
        if allowed is not None and not is_causal:
            bias = mask is not None and not is_bool
            mask = mask.masked_fill(~allowed, -math.inf) if bias else allowed & mask if is_bool else allowed
        usual = scale == 1.0 / math.sqrt(q.shape[-1])
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=None if usual else scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q * scale) @ k.mT
    if is_bool:
        allowed = mask if allowed is None else allowed & mask
    elif mask is not None:
        scores = scores + mask
    if allowed is None:
        return torch.softmax(scores, dim=-1) @ v
    weights = torch.softmax(scores.masked_fill(~allowed, -math.inf), dim=-1)
    return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0) @ v


RUNNERS = {
    "ort-cpu": run_onnxruntime, "openvino": run_openvino, "onnx-reference": run_onnx_reference,
    "torch-eager": run_torch, "torch-sdpa": run_torch, "torch-compile": run_torch,
}  # fmt: skip


# ---- the comparison


def compare(found: Any, expected: Any) -> dict[str, float]:
    """Errors of float64 rows: a row is a vector along the last axis. A NaN makes every error NaN."""
    found, expected = found.reshape(-1, found.shape[-1]), expected.reshape(-1, expected.shape[-1])
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.sqrt((expected**2).sum(axis=1))
        typical = math.sqrt(float((sizes**2).mean())) or 1.0  # stands in for a row of zeros
        least = np.maximum(sizes, typical * 2.0 ** -found.shape[-1])  # of rows of few numbers some are nearly 0
        errors = np.sqrt(((found - expected) ** 2).sum(axis=1)) / np.where(sizes == 0.0, typical, least)
        gain = abs(float((found * expected).sum()) / (float((expected**2).sum()) or 1.0) - 1.0)
    worst = int(np.argmax(np.isnan(errors))) if np.isnan(errors).any() else int(np.argmax(errors))
    return {"worst_row": float(errors[worst]), "row": worst, "rows": len(errors), "gain": gain,
            "nan": int(np.isnan(found).sum()), "max_abs": float(np.abs(found - expected).max())}  # fmt: skip


def misfit(case: dict[str, Any], name: str, array: Any) -> str:
    """Where an output has another type or shape than is due, in words; else empty."""
    kind, shape = case["outputs"][name]["kind"], tuple(case["outputs"][name]["shape"])
    if array.shape == shape and array.dtype == RAW[kind]:
        return ""
    return f"WRONG: {name} is {array.dtype} of shape {array.shape}, it should be {kind} of shape {shape}"


def cache_faults(case: dict[str, Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> list[str]:
    """What is wrong with the cache of a decode step: old tokens must be there bit for bit, new ones within a limit."""
    found = []
    for name in [name for name in outputs if name.startswith("present_")]:
        array, past = outputs[name], inputs[name.replace("present", "past")]
        wrong = misfit(case, name, array)
        if not wrong:
            old, new = np.split(array, [past.shape[2]], axis=2)
            with np.load(HERE / "expected.npz", allow_pickle=False) as stored:
                error = compare(as_float64(new, case["dtype"]), stored[name])["worst_row"]
            changed, limit = int((old != past).sum()), case["outputs"][name]["limit"]
            if changed or not error <= limit:
                wrong = f"WRONG: {name}: {changed} of {past.size} values of old tokens are others; "
                wrong += f"new ones are off by {error:.3g}, allowed {limit:.3g}"
        found += [wrong] if wrong else []
    return found


def report(case: dict[str, Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> tuple[str, bool]:
    """What is found, in words, and whether it is right."""
    y = outputs["y"]
    wrong = misfit(case, "y", y)
    if wrong:
        return wrong + "\n", False
    with np.load(HERE / "expected.npz", allow_pickle=False) as stored:
        expected, rows = stored["y"], stored["rows"]
    e = compare(as_float64(y[..., rows, :], case["dtype"]), expected)
    faults = cache_faults(case, inputs, outputs)
    is_near = e["worst_row"] <= case["limit"] and (case["gain_limit"] is None or e["gain"] <= case["gain_limit"])
    is_right = is_near and not faults
    recorded = "not measured" if case["recorded_error"] is None else f"{case['recorded_error']:.3g}"
    gain = "" if case["gain_limit"] is None else f", allowed {case['gain_limit']:.3g}"
    lines = [
        f"worst row error {e['worst_row']:.3g}, allowed {case['limit']:.3g} (row {e['row']} of {e['rows']:,})",
        f"in the run it was {recorded}",
        f"scale error {e['gain']:.3g}{gain}; largest difference {e['max_abs']:.3g}; NaN in the output: {e['nan']}",
        *faults,
        "right" if is_right else "WRONG",
    ]
    return "".join(line + "\n" for line in lines), is_right


def largest_error(found: Any, expected: Any) -> float:
    """The largest difference, in parts of the largest expected number; inf and NaN must be where they are expected."""
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    with np.errstate(invalid="ignore"):
        gap = float(np.abs(found[finite] - expected[finite]).max())
    return gap / (float(np.abs(expected[finite]).max()) or 1.0)


def report_outputs(case: dict[str, Any], outputs: dict[str, Any]) -> tuple[str, bool]:
    """As `report`, of every output of a file, element by element."""
    lines, is_right = [], True
    with np.load(HERE / "expected.npz", allow_pickle=False) as stored:
        for name, spec in case["outputs"].items():
            wrong = misfit(case, name, outputs[name])
            if not wrong:
                found, due = (as_float64(array, spec["kind"]) for array in (outputs[name], stored[name]))
                error = largest_error(found, due)
                is_near = error <= spec["limit"]
                wrong = "" if is_near else "WRONG: "
                if math.isfinite(error):
                    wrong += f"{name} is off by {error:.3g} of the largest expected value, allowed {spec['limit']:.3g}"
                else:
                    has, wants = (f"{np.isinf(a).sum()} infinities and {np.isnan(a).sum()} NaN" for a in (found, due))
                    wrong += f"{name} has {has} among {found.size} numbers, {wants} are expected, each in its place"
                is_right = is_right and is_near
            else:
                is_right = False
            lines.append(wrong)
    lines.append("right" if is_right else "WRONG")
    return "".join(line + "\n" for line in lines), is_right


def main(arguments: list[str]) -> int:
    """Run the case, or write its inputs for trtexec."""
    case = read_case()
    inputs = read_arrays(case, "inputs")
    if arguments == ["--write-raw"]:
        for name, array in inputs.items():
            (HERE / f"{name}.bin").write_bytes(array.tobytes())
        return 0
    sys.stdout.write(f"{case['arm']}: {case['label']}\n")
    sys.stdout.flush()  # a runtime that crashes takes no word with it
    outputs = RUNNERS[case["runtime"]](case, inputs, read_arrays(case, "weights"))
    text, is_right = report(case, inputs, outputs) if case["part"] else report_outputs(case, outputs)
    sys.stdout.write(text)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
