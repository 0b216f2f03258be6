"""The commands that write what is deployed, and check it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench import arm_flags, flags
from attnbench.console import note, say, say_wrapped
from attnbench.errors import InputError
from attnbench.options import HOW, WHAT, WHERE, Json, Lists, listed, single, switch

DEPLOY = "What it is for"
_OF_PROBLEM = ("preset", "part", "variant", "num_heads", "head_dim", "num_kv_heads", "v_head_dim", "mask", "scale",
               "bias", "value_map", "dtype")  # fmt: skip
_OF_BUNDLE = {"recipe": "--recipe", "max_len": "--max-len", "gpu_archs": "--gpu-archs", "triton": "--triton"}


def export(
    context: typer.Context,
    out: Annotated[
        str, single("-o", "--out", help="The .onnx file, or the folder of a bundle.", metavar="PATH", panel=WHERE)
    ],
    exporter: Annotated[
        str | None, single("--exporter", help="For one file; see attnbench list.", metavar="NAME", panel=DEPLOY)
    ] = None,
    target: Annotated[
        str | None, single("--target", help="For a bundle; see above.", metavar="TARGET", panel=DEPLOY)
    ] = None,
    recipe: Annotated[
        str | None,
        single("--recipe", help="Of a bundle; auto times all.", metavar="NAME", panel=DEPLOY, default="documented"),
    ] = None,
    max_len: Annotated[
        str | None,
        single("--max-len", help="The largest T that a bundle proves.", metavar="N", panel=DEPLOY, default="512"),
    ] = None,
    gpu_archs: Annotated[
        str | None,
        single("--gpu-archs", help="Of engines.", metavar="sm89,sm120", panel=DEPLOY, default="sm89,sm120"),
    ] = None,
    triton: Annotated[
        bool, switch("--triton", help="Add a model repository of Triton Inference Server.", panel=DEPLOY)
    ] = False,
    module: Annotated[
        str | None,
        single(
            "--module", help="A torch.nn.Module of yours, in a bundle.", metavar="PACKAGE.MODULE:CLASS", panel=DEPLOY
        ),
    ] = None,
    inputs: Annotated[
        str | None, single("--inputs", help="TOML: what it takes; see docs/modules.md.", metavar="FILE", panel=DEPLOY)
    ] = None,
    preset: Annotated[
        str | None, single("--preset", help="Shapes of a model; see explain presets.", metavar="NAME", panel=WHAT)
    ] = None,
    part: Annotated[
        str | None, single("--part", help="block or core.", metavar="PART", panel=WHAT, default="block")
    ] = None,
    variant: Annotated[
        str | None, single("--variant", help="self, cross, causal, decode.", metavar="NAME", panel=WHAT, default="self")
    ] = None,
    num_heads: Annotated[
        str | None, single("--num-heads", "--heads", help="Heads.", metavar="N", panel=WHAT, default="8")
    ] = None,
    head_dim: Annotated[
        str | None, single("--head-dim", help="Size of a head.", metavar="N", panel=WHAT, default="64")
    ] = None,
    num_kv_heads: Annotated[
        str | None, single("--num-kv-heads", "--kv-heads", help="Heads of keys and values.", metavar="N", panel=WHAT)
    ] = None,
    v_head_dim: Annotated[
        str | None, single("--v-head-dim", help="Size of a value head.", metavar="N", panel=WHAT)
    ] = None,
    mask: Annotated[str | None, single("--mask", help="Such as key_padding.", metavar="NAME", panel=WHAT)] = None,
    scale: Annotated[str | None, single("--scale", help="Of the scores.", metavar="X", panel=WHAT)] = None,
    bias: Annotated[bool, switch("--bias", help="Projections with bias.", panel=WHAT)] = False,
    value_map: Annotated[
        str | None, single("--value-map", help="joint or low_rank.", metavar="NAME", panel=WHAT)
    ] = None,
    dtype: Annotated[
        str | None, single("--dtype", help="fp32, fp16 or bf16.", metavar="DTYPE", panel=WHAT, default="fp32")
    ] = None,
    opset: Annotated[
        str | None, single("--opset", help="Opset.", metavar="N", panel=WHAT, default="the exporter's")
    ] = None,
    seed: Annotated[str, single("--seed", help="Of the weights.", metavar="N", default="0")] = "0",
    as_json: Annotated[bool, switch("--json", help="Print JSON instead of text.", panel=WHERE)] = False,
) -> int:
    """Write one attention problem: with --exporter one ONNX file, with --target a bundle that proves itself.

    With --module and --inputs a bundle of a module of yours: a worker imports its code from the folder where attnbench
    is started and from the installed packages. Batch size and lengths stay free. TARGET is onnxruntime-cpu,
    onnxruntime-cuda, tensorrt, tensorrt-rtx, openvino or torch. A bundle is a folder: the model, golden cases with
    float64 outputs, verify.py, README.md, bundle.json. Its recipe is the documented best of the target that is right,
    not timed here; --recipe auto times all that are right, where the target runs here, and takes the fastest.
    """
    if target is not None:
        return _export_bundle(context.params)
    if module is not None or inputs is not None:
        raise InputError("--module and --inputs are for a bundle; add --target TARGET, such as onnxruntime-cpu")
    if exporter is None:
        raise InputError("export needs --exporter NAME for one file, or --target TARGET for a bundle; got neither")
    given = [flag for name, flag in _OF_BUNDLE.items() if context.params[name] not in (None, False)]
    if given:
        raise InputError(f"{', '.join(given)} is for a bundle; add --target, or leave it out")
    arguments = {**problem_arguments(context.params), "out": flags.parse_file_out("--out", out)}
    arguments["exporter"] = flags.only_one("exporter", arm_flags.parse_plugins("--exporter", "exporter", [exporter]))
    from attnbench import api

    made = api.export(**arguments)
    facts = {"path": str(made.path), "exporter": made.exporter, "opset": made.opset, "size_bytes": made.size_bytes,
             "sha256": made.sha256, "verified": made.verified, "operators": dict(made.operators)}  # fmt: skip
    say(json.dumps(facts, indent=2) if as_json else "\n".join(f"{key:12}{value}" for key, value in facts.items()))
    return 0


def _export_bundle(params: Mapping[str, Any]) -> int:
    """The command with --target."""
    if params["exporter"] is not None:
        raise InputError("--exporter is for one file; a bundle has --recipe NAME, or --recipe auto")
    is_module = params["module"] is not None or params["inputs"] is not None
    arguments = module_arguments(params) if is_module else problem_arguments(params)
    if params["max_len"] is not None:
        arguments["max_len"] = flags.parse_int("--max-len", params["max_len"], minimum=1, example="512")
    if params["recipe"] is not None:
        arguments["recipe"] = params["recipe"]
    arguments["triton"] = params["triton"]
    if params["gpu_archs"] is not None:
        from attnbench.deploy.rtx import parse_archs

        arguments["gpu_archs"] = parse_archs(params["gpu_archs"])
    out = flags.parse_bundle_out("--out", params["out"])
    from attnbench import bundles

    write = bundles.export_module if is_module else bundles.export_bundle
    made = write(target=params["target"], out=out, say=note, **arguments)
    if params["as_json"]:
        say(json.dumps({"path": str(out), **made.model_dump(mode="json")}, indent=2))
        return 0
    for check in made.checks:
        say_wrapped(f"{check.result:8} {check.name}: {check.detail}", hang=9)
    verifier = shlex.quote(str(out / "verify.py"))
    lacks_device = any(c.result == "not run" and c.name.startswith("golden cases in ") for c in made.checks)
    where = f"where {made.target} has a device" if lacks_device else "anywhere"
    say_wrapped(f"{out}: {made.model}, {len(made.files) + 1} files. Verify it {where}: python {verifier}")
    return 0


def module_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """What of a module is exported, from the flags of `export`.

    Raises:
        InputError: one of --module and --inputs alone, or a flag of the built-in attention beside them.
    """
    if params["module"] is None or params["inputs"] is None:
        alone = "--module" if params["inputs"] is None else "--inputs"
        raise InputError(f"--module and --inputs go together, got {alone} alone; see docs/modules.md")
    others = [f"--{n.replace('_', '-')}" for n in (*_OF_PROBLEM, "max_len") if params[n]]
    if others:
        raise InputError(
            f"{', '.join(others)} is for the built-in attention; a module's sizes are in its --inputs file"
        )
    opset = flags.parse_sizes("--opset", None if params["opset"] is None else [params["opset"]])
    return {
        "module": params["module"], "inputs": Path(params["inputs"]), "opset": flags.only_one("opset", opset),
        "seed": flags.parse_int("--seed", params["seed"], minimum=0, example="0"),
    }  # fmt: skip


def problem_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """What is exported, from the flags of `export`.

    Raises:
        InputError: the first flag that is wrong.
    """
    given: dict[str, Sequence[str] | None] = {n: None if v is None else [v] for n, v in params.items()}
    arguments: dict[str, Any] = {}
    for name in ("part", "variant", "dtype"):
        arguments[name] = flags.parse_choices(f"--{name}", given[name], name)
    for name in ("num_heads", "head_dim", "num_kv_heads", "v_head_dim", "opset"):
        arguments[name] = flags.parse_sizes(f"--{name.replace('_', '-')}", given[name])
    arguments["mask"] = flags.parse_masks("--mask", given["mask"])
    arguments = {key: flags.only_one(key, values) for key, values in arguments.items()}
    arguments |= {
        "preset": flags.parse_preset(params["preset"]),
        "scale": flags.parse_positive("--scale", params["scale"], example="0.125"),
        "bias": params["bias"] or None,
        "value_map": params["value_map"],
        "seed": flags.parse_int("--seed", params["seed"], minimum=0, example="0"),
    }
    return {key: value for key, value in arguments.items() if value is not None}


def verify(
    folder: Annotated[str, typer.Argument(help="A bundle that export made.", metavar="DIR", show_default=False)],
    options: Annotated[
        Lists, listed("--options", "--option", help="Settings of the runtime: KEY=VALUE.", panel=HOW)
    ] = None,
    memory_limit: Annotated[
        str | None, single("--memory-limit", help="Of the worker.", metavar="16GiB", default="16GiB")
    ] = None,
    as_json: Json = False,
) -> int:
    """Check a bundle as its verify.py does, in a worker, and compare with this machine's torch.

    Exit code 0 right, 3 numerics drifted, 4 a file is changed or missing, 5 the runtime cannot load it.
    """
    from attnbench import bundles

    settings = {}
    for text in arm_flags.split_list("--options", options) or ():
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise InputError(f"--options must be KEY=VALUE, got {text!r}; such as INFERENCE_PRECISION_HINT=f32")
        settings[key] = value
    limit = flags.parse_size("--memory-limit", memory_limit)
    found = bundles.verify(Path(folder), options=settings, memory_limit_bytes=limit)
    if as_json:
        say(json.dumps(found.as_dict(), indent=2))
        return found.exit_code
    for line in found.lines():
        say_wrapped(line)
    return found.exit_code
