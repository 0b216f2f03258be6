"""The torch block through `torch.onnx.export`: what the decomposed and the Attention exporter share."""

import contextlib
import functools
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from attnbench.errors import ExportError, OpsetError, UnsupportedError
from attnbench.inputs import make_inputs
from attnbench.interfaces import SUPPORTED, Probe, Support
from attnbench.masks import NO_MASK, parse_mask
from attnbench.model_problem import ModelProblem
from attnbench.problem import Problem
from attnbench_exporters import onnx_files
from attnbench_exporters.weights import share_weights

PACKAGES = ("onnxscript", "onnx", "torch")
MODULES = ("onnx", "onnxscript")  # torch takes seconds to import; the runtimes' probes do that

# Sizes of the traced example. Each is at least 2 and no two are equal, else torch.export would merge or freeze dims.
EXAMPLE_BATCH_SIZE, EXAMPLE_Q_LEN, EXAMPLE_KV_LEN = 2, 11, 7

_TRACING = threading.Lock()  # torch.export keeps global state


def opset_support(opset: int, opsets: tuple[int, ...], name: str) -> Support:
    """Is the opset one that the exporter can write?"""
    if opset in opsets:
        return SUPPORTED
    return Support(ok=False, reason=f"{name} writes opset {', '.join(map(str, sorted(opsets)))}, not {opset}")


class FromTorch:
    """What every exporter that goes through torch.export has: the packages, and every problem at its opsets."""

    name: str
    opsets: tuple[int, ...]
    preload = ("torch", "onnx", "onnxscript", "torch.onnx", "attnbench.late_imports")

    def probe(self) -> Probe:
        """Are torch, onnx and onnxscript there and new enough?"""
        return onnx_files.probe_packages(PACKAGES, MODULES)

    def supports(self, problem: Problem, opset: int) -> Support:
        """Every problem, at the opsets that come out as asked."""
        return opset_support(opset, self.opsets, self.name)


def require(support: Support, opset: int, opsets: tuple[int, ...]) -> None:
    """Turn a refusal into an error.

    Raises:
        OpsetError: the opset is not one of `opsets`.
        UnsupportedError: anything else.
    """
    if opset not in opsets:
        raise OpsetError(support.reason)
    if not support.ok:
        raise UnsupportedError(support.reason)


def require_opset(opset: int, opsets: tuple[int, ...], name: str) -> None:
    """Go on only with an opset that the exporter writes modules in.

    Raises:
        OpsetError: it is another.
    """
    require(opset_support(opset, opsets, f"{name} (of a module)"), opset, opsets)


def require_attention(nodes: int, problem: ModelProblem) -> None:
    """Go on only where torch wrote at least one `Attention` node.

    Raises:
        UnsupportedError: the module has none to write.
    """
    if not nodes:
        raise UnsupportedError(
            f"{problem.name} calls no scaled_dot_product_attention, so that there is no attention to find in it; "
            "use onnx-decomposed, or call it"
        )


def example_problem(problem: Problem) -> Problem:
    """The problem at the sizes that are traced: dims that are separate symbols get different sizes."""
    separate = any("kv_len" in dims for dims in problem.symbolic_dims().values())
    kv_len = EXAMPLE_KV_LEN if separate else EXAMPLE_Q_LEN
    if problem.variant == "decode":
        kv_len = EXAMPLE_Q_LEN + EXAMPLE_KV_LEN
    return problem.at(q_len=EXAMPLE_Q_LEN, kv_len=kv_len, batch_size=EXAMPLE_BATCH_SIZE)


def trace(problem: Problem, opset: int, *, attention: str, seed: int) -> Any:
    """The onnx.ModelProto that torch makes of the block; nothing of it has been checked.

    Args:
        problem: gives part, variant, head sizes and dtype; batch and lengths become symbols.
        opset: asked of torch, which may answer with another one.
        attention: `eager`, `sdpa`, or `sdpa_without_rule`: what positions allow is left to the exporter.
        seed: of the weights.

    Raises:
        ExportError: torch cannot export it.
    """
    import torch

    from attnbench.torch_model import to_torch

    example = example_problem(problem)
    with tracing(), _LAST.kept((example, attention, seed)):
        module, args = _LAST.program, ()
        if module is None:
            module = _module(problem, attention, seed)
            args = tuple(to_torch(array).contiguous() for array in make_inputs(example).values())
        try:
            program = torch.onnx.export(
                module, args, dynamo=True, opset_version=opset, input_names=list(problem.input_shapes()),
                output_names=list(problem.output_dims()), dynamic_shapes=_dynamic_shapes(problem), verbose=False,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as err:
            raise _export_error(err, problem, opset) from err
    return program.model_proto


def translate(program: Any, problem: ModelProblem, opset: int) -> Any:
    """The onnx.ModelProto of a traced module of the user, shared weights shared; nothing else of it has been checked.

    Args:
        program: a torch.export.ExportedProgram whose inputs and outputs are tensors in the order of the problem's.
        problem: gives their names.
        opset: asked of torch, which may answer with another one.

    Raises:
        ExportError: torch cannot write an operator of it.
    """
    import torch

    with tracing(), _LAST.kept(id(program)):
        try:
            made = torch.onnx.export(
                program, dynamo=True, opset_version=opset, input_names=[tensor.name for tensor in problem.inputs],
                output_names=[tensor.name for tensor in problem.outputs], verbose=False,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as err:
            raise _export_error(err, problem, opset) from err
    model = made.model_proto
    share_weights(model)
    return model


def _export_error(err: Exception, problem: Problem | ModelProblem, opset: int) -> ExportError:
    first = str(err).strip().splitlines()[0]
    return ExportError(f"torch.onnx cannot export {problem.label()} at opset {opset}: {first}")


def _module(problem: Problem, attention: str, seed: int) -> Any:
    from attnbench.torch_model import AttentionCore, build_module

    module = build_module(problem, seed=seed, attention="eager" if attention == "eager" else "sdpa")
    for part in module.modules():
        if attention == "sdpa_without_rule" and isinstance(part, AttentionCore):
            part.rule = parse_mask(problem.masking.tensor or NO_MASK)
    return module


class _LastTrace:
    """The torch.export.ExportedProgram of the block exported last, so that all its opsets share one trace.

    Tracing and decomposing take two thirds of an export; they depend on the opset only by which operators torch can
    translate, which is the same set for most of them.
    """

    def __init__(self) -> None:
        self.program: Any = None
        self._key: object = None
        self._decomposed: dict[frozenset[Any], Any] = {}

    @contextlib.contextmanager
    def kept(self, key: object) -> Iterator[None]:
        """Note the program that torch.onnx decomposes inside; `program` is it while the key stays the same."""
        from torch.export import ExportedProgram

        if key != self._key:
            self.program, self._key, self._decomposed = None, key, {}
        _keep_registries()
        decompose = ExportedProgram.run_decompositions

        def decompose_once(program: Any, table: Any = None) -> Any:
            operators = frozenset(table or ())
            if program is not self.program:
                self.program, self._decomposed = program, {}
            if operators not in self._decomposed:
                self._decomposed[operators] = decompose(program, table)
            return self._decomposed[operators]

        ExportedProgram.run_decompositions = decompose_once
        try:
            yield
        finally:
            ExportedProgram.run_decompositions = decompose


_LAST = _LastTrace()


def _dynamic_shapes(problem: Problem) -> tuple[dict[int, Any], ...]:
    """Axis -> Dim for each input in order; one Dim object per promised name."""
    from torch.export import Dim

    promised = list(problem.input_dims().values())
    symbols = {dim: Dim(dim) for dims in promised for dim in dims if isinstance(dim, str)}
    return tuple({axis: symbols[d] for axis, d in enumerate(dims) if isinstance(d, str)} for dims in promised)


@functools.cache
def _keep_registries() -> None:
    """Have torch build its table of translations once per opset, not for every file (0.4 of 1.2 s)."""
    with contextlib.suppress(ImportError, AttributeError):  # no public way: another torch is only slower
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """One trace at a time, without notes of torch."""
    with _TRACING, _quiet():
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No notes about torchvision, deprecations or opset conversion: what matters is checked on the file."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
