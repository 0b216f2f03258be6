"""The README of a reproduction, with the commands of other tools that run the same."""

from collections.abc import Mapping
from typing import Any

_PACKAGES = {"ort-cpu": "onnxruntime", "openvino": "openvino", "onnx-reference": "onnx"}


def readme(found: str, case: Mapping[str, Any], has_model: bool, elsewhere: Mapping[str, str] | None = None) -> str:
    """In Markdown. elsewhere: versions of the interpreter that ran it, where it was not attnbench's own."""
    package = _PACKAGES.get(case["runtime"], "torch")
    where = []
    if elsewhere is not None:
        package += f"=={elsewhere['runtime_version']}"
        told = f"It ran under another interpreter than attnbench, Python {elsewhere['python_version']}"
        where = [f"{told}: an environment of these versions shows what was seen.", ""]
    lines = [
        f"# {case['arm']}: {case['label']}", "", f"Found: {found}", "", *where,
        f"`pip install numpy {package}` (the versions used are in versions.json), then", "", "    python run.py", "",
        f"prints {_judged(case)}. Exit code 0: within what is allowed, 1: not.", "",
        *_contents(case, has_model),
    ]  # fmt: skip
    if has_model:
        lines += ["", "## The same in other tools", "", *_other_tools(case), ""]
        lines += ["attnbench wrote what needs TensorRT for you to run: it was not run when this zip was made."]
    return "\n".join(lines) + "\n"


def _judged(case: Mapping[str, Any]) -> str:
    if case["part"] is None:
        return "the largest error of every output against `expected.npz`, which holds what the onnx package expects"
    cache = ", and what is wrong with the cache" if case["variant"] == "decode" else ""
    return (
        "the error of the worst row of `y` against `expected.npz`, which is attention computed in float64 from "
        f"the inputs as they are rounded{cache}"
    )


def _contents(case: Mapping[str, Any], has_model: bool) -> list[str]:
    is_file = case["part"] is None
    lines = [
        "- case.json: shapes, threads and limits" if is_file else "- case.json: shapes, mask, scale, threads and limits"
    ]
    lines += ["- model.onnx: what the runtime loads"] if has_model else ["- run.py holds the block, in PyTorch"]
    if case["stored"]:
        lines += ["- inputs.npz" + ("" if has_model else " and weights.npz") + ": arrays without pickle"]
        lines += ["- bfloat16 is kept as its 16 bits in uint16"] if _has_bf16(case) else []
    else:
        lines += [f"- inputs are not stored: run.py draws them from seed {case['seed']}, the same on every machine"]
    expected = "every output" if is_file else "`y` in float64 at the query positions `rows`"
    return [*lines, f"- expected.npz: {expected}"]


def _has_bf16(case: Mapping[str, Any]) -> bool:
    return any(spec["kind"] == "bf16" for spec in case["inputs"].values())


def _other_tools(case: Mapping[str, Any]) -> list[str]:
    shapes = ",".join(f"{name}:{'x'.join(map(str, spec['shape']))}" for name, spec in case["inputs"].items())
    files = ",".join(f"{name}:{name}.bin" for name in case["inputs"])
    # From opset 23 on, and wherever a file says its types, TensorRT must not choose others.
    trtexec = f"trtexec --onnx=model.onnx --shapes={shapes} --loadInputs={files} --stronglyTyped --noTF32 --dumpOutput"
    profile = " ".join(f"{name}:[{','.join(map(str, spec['shape']))}]" for name, spec in case["inputs"].items())
    profiles = " ".join(f"--trt-{end}-shapes {profile}" for end in ("min", "opt", "max"))
    shown = [
        f"    polygraphy run model.onnx --onnxrt --trt --data-loader-script run.py {profiles}",
        "",
        "without `--trt` on a machine without an NVIDIA GPU; or, after `python run.py --write-raw`,",
        "",
        f"    {trtexec}",
    ]
    if _has_bf16(case):
        return ["NumPy has no bfloat16, so polygraphy cannot take these inputs. After `python run.py --write-raw`:", "",
                shown[-1]]  # fmt: skip
    return shown
