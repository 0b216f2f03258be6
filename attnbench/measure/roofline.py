"""What a problem costs at least, and what this machine can do at most."""

import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from attnbench.errors import UnavailableError
from attnbench.inputs import weight_shapes
from attnbench.problem import DTYPE_BYTES, Problem

# A fraction of peak above this is an error in the harness, or a computation that was skipped.
BEATS_ROOFLINE = 1.05

_LARGE, _SMALL = 1024, 256  # square matrices; the small one tells how fast the large one will be
_SLOW_GFLOPS = 10.0
_COPY_BYTES = 256 << 20  # of the array that is copied: several times the last-level cache of a large server


class MachinePeak(NamedTuple):
    """The best matrix product of this machine in a dtype."""

    gflops_per_s: float
    by: str  # "torch.mm"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A library's matrix product; `make(n)` gives a call that multiplies two n x n matrices."""

    name: str
    make: Callable[[int], Callable[[], object]]


def flops(problem: Problem) -> int:
    """Floating-point operations: 2 B H q_len kv_len (D + D_v) for attention, half for causal, plus the projections.

    Causal with q_len != kv_len (top-left): the triangle of the shorter length, and whole rows below it.
    A multiply-add counts 2. Softmax is not counted. The block projects q and output over q_len, k and v over kv_len.
    """
    p = problem
    width = p.head_dim + p.v_head_dim
    return int(2 * p.batch_size * p.num_heads * visible_pairs(p) * width) + projection_flops(problem)


def visible_pairs(problem: Problem) -> float:
    """Query-key pairs that the position rule leaves; what a tensor masks is computed all the same and counts."""
    p, masking = problem, problem.masking
    if not masking.position:
        return float(p.q_len * p.kv_len)
    if masking.position == "causal_top_left":
        short = min(p.q_len, p.kv_len)
        return short * short / 2 + (p.q_len - short) * p.kv_len
    import numpy as np

    first, end = masking.visible(np.arange(p.q_len), p.q_len, p.kv_len)
    return float((end - first).sum())


def projection_flops(problem: Problem) -> int:
    """The part of `flops` that is matrix products with weights: 0 for the core."""
    if problem.part == "core":
        return 0
    keys = problem.q_len if problem.variant == "decode" else problem.kv_len  # the cache is not projected again
    lengths = {"w_q": problem.q_len, "w_k": keys, "w_v": keys, "w_o": problem.q_len}
    per_sample = sum(lengths[name] * math.prod(shape) for name, shape in weight_shapes(problem).items())
    return 2 * problem.batch_size * per_sample


def bytes_min(problem: Problem) -> int:
    """Least traffic: every input and weight read once, the output written once."""
    sizes = {"bool": 1, **DTYPE_BYTES}
    kinds = problem.input_kinds()
    read = sum(math.prod(shape) * sizes[kinds[name]] for name, shape in problem.input_shapes().items())
    weights = weight_shapes(problem)
    new = problem.q_len if problem.variant == "decode" else 0  # tokens that are written to the cache
    cached = problem.batch_size * problem.num_kv_heads * new * (problem.head_dim + problem.v_head_dim)
    others = math.prod(problem.output_shape()) + cached + sum(math.prod(shape) for shape in weights.values())
    others += sum(shape[1] for shape in weights.values()) if problem.bias else 0
    return read + others * DTYPE_BYTES[problem.dtype]


def peak_fraction(gflops_per_s: float, peak_gflops_per_s: float | None) -> float | None:
    """Part of the machine's peak that was reached; None where the peak is not known."""
    if peak_gflops_per_s is None or peak_gflops_per_s <= 0.0:
        return None
    return gflops_per_s / peak_gflops_per_s


def beats_roofline(fraction: float | None) -> bool:
    """Is this more than the machine can do?"""
    return fraction is not None and fraction > BEATS_ROOFLINE


def peak_candidates(dtype: str, threads: int) -> list[Candidate]:
    """The matrix products that are installed and multiply this dtype natively; sets their threads.

    Call it in a process of its own: it imports frameworks and changes their settings. NumPy and ONNX Runtime's CPU
    provider have no native fp16 or bf16 product.
    """
    makers = [_torch_mm, _onednn] if dtype != "fp32" else [_numpy, _torch_mm, _ort, _onednn]
    found = []
    for maker in makers:
        try:
            found.append(maker(dtype, threads))
        except ImportError:
            continue
    return found


def measure_peak_flops(dtype: str, threads: int, seconds: float = 2.0) -> MachinePeak:
    """The best rate of any candidate's fastest call, in GFLOP/s.

    Args:
        dtype: fp32, fp16 or bf16.
        threads: for each of them.
        seconds: for all of them together; each gets at least one call of each size.

    Raises:
        UnavailableError: no library here multiplies this dtype.
    """
    candidates = peak_candidates(dtype, threads)
    if not candidates:
        raise UnavailableError(f"no installed library multiplies {dtype} matrices; install torch")
    rates = {c.name: _best_gflops(c, seconds / len(candidates)) for c in candidates}
    by = max(rates, key=lambda name: rates[name])
    return MachinePeak(rates[by], by)


def measure_bandwidth(threads: int, seconds: float = 0.5) -> float:
    """GB/s (1e9 bytes) of the fastest copy of arrays that no cache holds: bytes read plus bytes written.

    What the hardware reads to fill the lines that are written is not counted, as in STREAM's copy.

    Args:
        threads: that copy a part each at the same time.
        seconds: for all copies; at least two are made.
    """
    import numpy as np

    count = _COPY_BYTES // 8 // threads
    pairs = [(np.ones(count), np.zeros(count)) for _ in range(threads)]
    best, deadline = math.inf, time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        for i in itertools.count():
            start = time.perf_counter_ns()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            best = min(best, float(max(1, time.perf_counter_ns() - start)))
            if i >= 1 and time.perf_counter() >= deadline:
                break
    return 2.0 * 8.0 * count * threads / best


def _best_gflops(candidate: Candidate, seconds: float) -> float:
    """GFLOP/s of the fastest call within the time; large matrices unless those would take seconds."""
    call = candidate.make(_SMALL)
    call()
    best = _gflops(_SMALL, call)
    if best < _SLOW_GFLOPS:
        return best
    call = candidate.make(_LARGE)
    call()
    deadline = time.perf_counter() + seconds
    while True:
        best = max(best, _gflops(_LARGE, call))
        if time.perf_counter() >= deadline:
            return best


def _gflops(n: int, call: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    call()
    return 2.0 * n**3 / max(1, time.perf_counter_ns() - start)


def _numpy(dtype: str, threads: int) -> Candidate:
    import numpy as np
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads)

    def make(n: int) -> Callable[[], object]:
        a, b = np.random.default_rng(0).standard_normal((2, n, n), dtype=np.float32)
        out = np.empty_like(a)
        return lambda: np.matmul(a, b, out=out)

    return Candidate(name="numpy", make=make)


def _torch_mm(dtype: str, threads: int) -> Candidate:
    import torch

    torch.set_num_threads(threads)
    torch_dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]

    def make(n: int) -> Callable[[], object]:
        a, b = torch.randn(2, n, n).to(torch_dtype)
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)

    return Candidate(name="torch.mm", make=make)


def _onednn(dtype: str, threads: int) -> Candidate:
    """The oneDNN that torch brings: torch.mm in fp32 goes to another library."""
    import torch

    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        raise ImportError("this torch was built without oneDNN")
    if dtype != "fp32" and not getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported")():
        raise ImportError(f"oneDNN has no {dtype} product for this CPU")
    torch.set_num_threads(threads)
    torch_dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]

    def make(n: int) -> Callable[[], object]:
        a, b = torch.randn(2, n, n).to(torch_dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(b, n)
        return lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")

    return Candidate(name="onednn", make=make)


def _ort(dtype: str, threads: int) -> Candidate:
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    def make(n: int) -> Callable[[], object]:
        tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [n, n]) for name in "aby"]
        graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "matmul", tensors[:2], tensors[2:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        a, b = np.random.default_rng(0).standard_normal((2, n, n), dtype=np.float32)
        return lambda: session.run(None, {"a": a, "b": b})

    return Candidate(name="ort.MatMul", make=make)
