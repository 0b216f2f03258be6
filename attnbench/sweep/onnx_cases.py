"""onnx's own test cases of `Attention`, from the installed package, on every runtime that runs any file."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import AttnbenchError, UnavailableError
from attnbench.sweep.bench import Bench, in_parallel, with_fix
from attnbench.sweep.conform import (
    ONNX_CASES,
    Cell,
    NotOursError,
    ProbeArm,
    Workers,
    at_once,
    cell_of,
    failed_cell,
)

_SHOWS = "the specification's own example"
_WRITE_TIMEOUT_S = 120.0


def run(bench: Bench, runtimes: Sequence[str], say: Callable[[str], object]) -> tuple[list[Cell], list[str]]:
    """A cell for every case and runtime; a notice where the package ships none."""
    if not runtimes:
        return [], ["no cases of the onnx package were run: no runtime of the selection takes files"]
    folder = bench.run_dir.path / "onnx-cases"
    folder.mkdir()
    try:
        with bench.worker(bench.servers.get(("onnx", "attnbench.sweep.tasks")), "onnx-cases") as worker:
            cases: list[dict[str, Any]] = worker.ask("onnx_cases", timeout_s=_WRITE_TIMEOUT_S, folder=str(folder))[
                "cases"
            ]
    except AttnbenchError as err:
        return [], [f"no cases of the onnx package were run: {err}"]
    say(f"{len(cases)} cases of the onnx package on {len(runtimes)} runtime{'s' if len(runtimes) > 1 else ''}")
    found: dict[tuple[str, str], Cell] = {}

    def ask_all(runtime: str) -> None:
        with Workers(bench, "runtime", runtime, bench.runtime_probes[runtime]) as workers:
            for case in cases:
                found[case["name"], runtime] = _ask(bench, workers, runtime, case)

    in_parallel(ask_all, list(runtimes), at_once())
    cells = [found[case["name"], runtime] for case in cases for runtime in runtimes]
    assert len(cells) == len(cases) * len(runtimes)
    return cells, []


def _ask(bench: Bench, workers: Workers, runtime: str, case: dict[str, Any]) -> Cell:
    arm = ProbeArm(exporter=ONNX_CASES, opset=case["opset"], runtime=runtime)
    name, label = case["name"], f"opset {case['opset']}"
    probe = bench.runtime_probes[runtime]
    try:
        if not probe.available:
            raise UnavailableError(f"{runtime} is not available here: {with_fix(probe)}")
        answer = workers.ask("onnx_case", runtime=runtime, folder=case["folder"])
    except AttnbenchError as err:
        return failed_cell(arm, name, _SHOWS, label, err)
    if "unsupported" in answer:
        return failed_cell(arm, name, _SHOWS, label, NotOursError(answer["unsupported"]))
    return cell_of(arm, name, _SHOWS, label, answer)


def write_cases(folder: Path, only: str | None = None) -> list[dict[str, Any]]:
    """Write every case of one `Attention` node: model.onnx and its tensors; name, opset and folder of each.

    `only` the case of this name, if it is given.
    """
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.case.node import collect_testcases

    cases = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it computes the cases of every operator first, overflows included
        found = collect_testcases("Attention")
    for case in found:
        if [node.op_type for node in case.model.graph.node] != ["Attention"]:
            continue  # the same case written out in other operators
        name = case.name.removeprefix("test_")
        if only not in (None, name):
            continue
        place = folder / case.name
        place.mkdir()
        onnx.save(case.model, place / "model.onnx")
        inputs, outputs = case.data_sets[0]
        for kind, values, arrays in (("in", case.model.graph.input, inputs), ("out", case.model.graph.output, outputs)):
            for number, (value, array) in enumerate(zip(values, arrays, strict=True)):
                tensor = numpy_helper.from_array(array, value.name)
                (place / f"{kind}-{number:02}.pb").write_bytes(tensor.SerializeToString())
        opset = next(entry.version for entry in case.model.opset_import if not entry.domain)
        cases.append({"name": name, "opset": opset, "folder": str(place)})
    return cases


def read_tensors(folder: Path, kind: str) -> dict[str, Any]:
    """The tensors of a case by name: `in` or `out`."""
    from onnx import TensorProto, numpy_helper

    tensors = {}
    for path in sorted(folder.glob(f"{kind}-*.pb")):
        tensor = TensorProto.FromString(path.read_bytes())
        tensors[tensor.name] = numpy_helper.to_array(tensor)
    return tensors


def ignored_attributes(folder: Path, output: Any) -> str:
    """Which attributes of a case's node a wrong first output comes without; empty where that explains nothing.

    The file without them is computed by onnx's evaluator, which agrees with all cases as they are.
    """
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator

    inputs = read_tensors(folder, "in")
    names = [attribute.name for attribute in onnx.load(folder / "model.onnx").graph.node[0].attribute]
    windows = tuple(name for name in names if "window" in name)
    for dropped in (windows, *((name,) for name in ("is_causal", "softcap", "scale") if name in names)):
        model = onnx.load(folder / "model.onnx")
        node = model.graph.node[0]
        kept = [attribute for attribute in node.attribute if attribute.name not in dropped]
        del node.attribute[:]
        node.attribute.extend(kept)
        try:
            with np.errstate(all="ignore"):
                without = ReferenceEvaluator(model).run(None, inputs)[0]
        except (ValueError, RuntimeError):  # it does not take every file without that attribute
            continue
        is_same = without.shape == output.shape and np.allclose(output, without, rtol=1e-3, atol=1e-4)
        if dropped and is_same:
            return f"{' and '.join(dropped)} ignored"
    return ""
