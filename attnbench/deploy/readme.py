"""The README.md of a bundle: how to load it, what each input means, what was proved and what was not."""

from collections.abc import Callable

from attnbench.deploy.manifest import Bundle, Golden, Recipe, Tensor

EXIT_CODES = "0 right, 2 bad usage, 3 numerics drifted, 4 a file is changed or missing, 5 the runtime cannot load it"


def readme(bundle: Bundle, sentence: str, notes: list[str]) -> str:
    """In Markdown.

    Args:
        bundle: what bundle.json says.
        sentence: what the model computes.
        notes: what its user has to know beside the inputs.
    """
    load = LOADING[bundle.runtime["module"]](bundle, _example(bundle.golden))
    title = "Attention" if bundle.problem else bundle.module
    version = f" {bundle.runtime['version']}" if bundle.runtime["version"] else ""
    lines = [
        f"# {title} for {bundle.target}", "", sentence, "",
        f"Made by attnbench {bundle.attnbench_version} for {bundle.runtime['distribution']}{version}; "
        f"`{bundle.model}` is what it loads.", "", "## Load it", "", *load, "",
        "## Inputs and outputs", "", *_tensors("input", bundle.inputs), "", *_tensors("output", bundle.outputs), "",
        _ranges(bundle), "", *notes, *([""] if notes else []), *_verify(bundle), *_proved(bundle), *_not_proved(bundle),
        "## How it was made", "", *_made(bundle),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _example(golden: tuple[Golden, ...]) -> Golden:
    """A case to load: its sizes are above 1, which OpenVINO wants to see first."""
    return next((case for case in golden if all(size > 1 for size in case.sizes.values())), golden[0])


def _code(lines: list[str]) -> list[str]:
    return ["```python", *lines, "```"]


def _names(tensors: tuple[Tensor, ...]) -> str:
    return "[" + ", ".join(f'"{tensor.name}"' for tensor in tensors) + "]"


def _shown(bundle: Bundle, y: str) -> str:
    name = bundle.outputs[0].name
    return f'print({y}.shape, abs({y} - case["out_{name}"]).max())'


def _load_onnxruntime(bundle: Bundle, case: Golden) -> list[str]:
    providers = ", ".join(f'"{name}"' for name in bundle.runtime["settings"]["providers"])
    lines = [
        "import numpy as np", "import onnxruntime as ort", "",
        f'session = ort.InferenceSession("{bundle.model}", providers=[{providers}])', f'case = np.load("{case.file}")',
    ]  # fmt: skip
    if not _has_bf16(bundle):
        lines += [f'inputs = {{name: case[f"in_{{name}}"] for name in {_names(bundle.inputs)}}}',
                  f"y = session.run({_names(bundle.outputs)}, inputs)[0]", _shown(bundle, "y")]  # fmt: skip
        return _code(lines)
    lines += [
        "value, io = ort.OrtValue.ortvalue_from_numpy_with_onnx_type, session.io_binding()",
        f'y = np.zeros(case["out_{bundle.outputs[0].name}"].shape, np.uint16)  # NumPy has no bfloat16: its 16 bits',
        *(f'io.bind_ortvalue_input("{t.name}", value(case["in_{t.name}"], {16 if t.dtype == "bf16" else 9}))'
          for t in bundle.inputs),
        f'io.bind_ortvalue_output("{bundle.outputs[0].name}", value(y, 16))', "session.run_with_iobinding(io)",
    ]  # fmt: skip
    return _code(lines)


def _load_openvino(bundle: Bundle, case: Golden) -> list[str]:
    hint = bundle.runtime["settings"]["INFERENCE_PRECISION_HINT"]
    lines = [
        "import numpy as np", "import openvino as ov", "", "core = ov.Core()",
        f'settings = {{"INFERENCE_PRECISION_HINT": "{hint}"}}  # without it OpenVINO may compute in less',
        f'model = core.compile_model(core.read_model("{bundle.model}"), "CPU", settings)',
        f'case = np.load("{case.file}")',
    ]  # fmt: skip
    if not _has_bf16(bundle):
        lines += [f'y = model({{name: case[f"in_{{name}}"] for name in {_names(bundle.inputs)}}})'
                  f'["{bundle.outputs[0].name}"]', _shown(bundle, "y")]  # fmt: skip
    else:
        bf16 = [t.name for t in bundle.inputs if t.dtype == "bf16"]
        lines += ['inputs = {name[3:]: case[name] for name in case.files if name.startswith("in_")}',
                  f"for name in {bf16}:  # NumPy has no bfloat16: its 16 bits",
                  "    inputs[name] = ov.Tensor(inputs[name], list(inputs[name].shape), ov.Type.bf16)",
                  f'y = model(inputs)["{bundle.outputs[0].name}"].view(np.uint16)']  # fmt: skip
    return [*_code(lines), "", "Let the first call have more than one key: OpenVINO 2026.4 compiles its softmax for "
            "what it sees first, and after one key alone longer rows come out wrong."]  # fmt: skip


def _load_torch(bundle: Bundle, case: Golden) -> list[str]:
    lines = ["import numpy as np", "import torch", "", f'module = torch.export.load("{bundle.model}").module()',
             f'case = np.load("{case.file}")']  # fmt: skip
    for tensor in bundle.inputs:
        view = ".view(torch.bfloat16)" if tensor.dtype == "bf16" else ""
        lines.append(f'{tensor.name} = torch.from_numpy(case["in_{tensor.name}"]){view}')
    call = f"module({', '.join(tensor.name for tensor in bundle.inputs)})" + ("[0]" if len(bundle.outputs) > 1 else "")
    return _code([*lines, f"y = {call}.double().numpy()", _shown(bundle, "y")])


def _load_tensorrt(bundle: Bundle, case: Golden) -> list[str]:
    def shapes(of: Callable[[str], int]) -> str:
        sized = (
            f"{t.name}:" + "x".join(str(d if isinstance(d, int) else of(d)) for d in t.dims) for t in bundle.inputs
        )
        return ",".join(sized)

    least, most = shapes(lambda dim: bundle.ranges[dim][0]), shapes(lambda dim: bundle.ranges[dim][1])
    return ["```", f"trtexec --onnx={bundle.model} --stronglyTyped --noTF32 --minShapes={least} "
            f"--optShapes={most} --maxShapes={most} --saveEngine=model.plan", "```", "",
            "Written by TensorRT's documentation; it was not run when this bundle was made."]  # fmt: skip


def _load_tensorrt_rtx(bundle: Bundle, case: Golden) -> list[str]:
    lines = ["from pathlib import Path", "", "import tensorrt_rtx as trt", "", "log = trt.Logger(trt.Logger.WARNING)",
             f'engine = trt.Runtime(log).deserialize_cuda_engine(Path("{bundle.model}").read_bytes())',
             "context = engine.create_execution_context()"]  # fmt: skip
    return [*_code(lines), "", "An engine runs on the architecture in its name; `engines.json` says which lengths each "
            "takes and what memory it plans. Running one is in `load_tensorrt_rtx` of verify.py. Compiled without a "
            "GPU; not yet run or timed on one."]  # fmt: skip


LOADING: dict[str, Callable[[Bundle, Golden], list[str]]] = {
    "onnxruntime": _load_onnxruntime, "openvino": _load_openvino, "torch": _load_torch, "tensorrt": _load_tensorrt,
    "tensorrt_rtx": _load_tensorrt_rtx,
}  # fmt: skip


def _has_bf16(bundle: Bundle) -> bool:
    return any(tensor.dtype == "bf16" for tensor in (*bundle.inputs, *bundle.outputs))


def _tensors(kind: str, tensors: tuple[Tensor, ...]) -> list[str]:
    rows = (f"| `{t.name}` | {t.dtype} | {' x '.join(map(str, t.dims))} | {t.means} |" for t in tensors)
    return [f"| {kind} | type | shape | meaning |", "|---|---|---|---|", *rows]


def _ranges(bundle: Bundle) -> str:
    if not bundle.ranges:
        return "Every size is fixed."
    ranges = (f"`{dim}` {low} to {high}" for dim, (low, high) in bundle.ranges.items())
    return f"Sizes with a name are free; proved were {', '.join(ranges)}."


def _verify(bundle: Bundle) -> list[str]:
    needs = bundle.runtime["distribution"]
    return ["## Verify it", "", f"`pip install numpy {needs}`, then", "", "    python verify.py", "",
            "compares every file's hash and every golden case. Exit codes: " + EXIT_CODES + "." + _without_gpu(bundle),
            "", "It takes bundle.json at its word. Of a bundle from somebody else ask `attnbench verify` of your own, "
            "which runs nothing of it but the model" + _made_again(bundle) + ".",
            ""]  # fmt: skip


def _made_again(bundle: Bundle) -> str:
    if bundle.problem:
        return ", and makes expected outputs and limits again"
    return (
        f". Expected outputs and limits were made by `{bundle.module}`, which is not in here: who has it makes them "
        "again with `attnbench export --module`, nobody else can"
    )


def _without_gpu(bundle: Bundle) -> str:
    if "CUDAExecutionProvider" not in bundle.runtime["settings"].get("providers", ()):
        return ""
    return " Without a GPU, `--option providers=CPUExecutionProvider` checks the same file on the CPU."


def _proved(bundle: Bundle) -> list[str]:
    lines = ["## What was proved", ""]
    lines += [f"- {check.name}: {check.detail}" for check in bundle.checks if check.result == "passed"]
    lines += ["", "| golden case | output | error of the worst row | allowed | why so much |", "|---|---|---|---|---|"]
    for case in bundle.golden:
        for name, limit in case.limits.items():
            error = f"{case.errors[name]:.2g}" if name in case.errors else "not run"
            lines.append(f"| {case.file} | `{name}` | {error} | {limit:.2g} | {case.reason} |")
    references = dict.fromkeys(case.reference for case in bundle.golden)
    lines += ["", f"Expected outputs come from {'; '.join(references)}.", ""]
    if bundle.conformance:
        probes = ", ".join(f"{found['probe']} ({found['shows']})" for found in bundle.conformance)
        lines += [f"Probes of what the mask means, on the file itself: {probes}.", ""]
    return lines


def _not_proved(bundle: Bundle) -> list[str]:
    missing = [f"- {check.name}: {check.detail}" for check in bundle.checks if check.result == "not run"]
    return ["## What was not", "", *missing, "- Sizes outside of the ranges above.",
            "- Another version of the runtime or another machine: run verify.py there.", ""]  # fmt: skip


def _made(bundle: Bundle) -> list[str]:
    recipe, made_by = bundle.recipe, bundle.recipe.exporter or "torch.export"
    opset = f", opset {recipe.opset}" if recipe.opset else ""
    versions = ", ".join(f"{name} {version}" for name, version in bundle.versions.items())
    timed = _candidates(recipe)
    return [
        f"By {made_by}{opset}: {recipe.reason}.",
        "",
        *timed,
        *([""] if timed else []),
        f"With {versions}, {bundle.created_at_utc}.",
    ]


def _candidates(recipe: Recipe) -> list[str]:
    """What was timed of each recipe, as a table; empty where nothing was."""
    if not recipe.candidates:
        return []
    lines = ["| recipe | speed over the plain export | interval | peak memory |", "|---|---|---|---|"]
    for found in recipe.candidates:
        if found.get("ratio") is None:
            lines.append(f"| {found['name']} | {found['status']}: {' '.join(found['reason'].split())[:120]} | | |")
            continue
        peak = found.get("peak_host_bytes")
        shown = "" if peak is None else f"{peak / 2**20:.1f} MiB"
        interval = f"{found['ratio_low']:.2f} to {found['ratio_high']:.2f}"
        lines.append(f"| {found['name']} | {found['ratio']:.2f}x | {interval} | {shown} |")
    return lines
