"""Flags of the command line: text in, checked values out, one sentence for whatever is wrong."""

import math
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from attnbench import plugins, presets, problem
from attnbench.arm_flags import (
    parse_arms,
    parse_plugins,
    parse_runtimes,
    split_list,
)
from attnbench.errors import InputError, ProblemError
from attnbench.masks import parse_mask
from attnbench.trt_compiler import arch_options

FP32_POLICIES = ("strict", "default")
GPU_WORKERS = ("auto", "parked", "one-at-a-time")
_MAX_INT = 2**63 - 1
_WITH_RESUME = frozenset({"resume", "time_budget", "as_json", "quiet", "junit", "markdown", "metrics"})
_T = TypeVar("_T")
_SIZE_FLAGS = {"--seq-lens": "128,512", "--kv-lens": "64,256", "--q-lens": "1,4", "--batch-sizes": "1,8",
               "--num-heads": "8", "--head-dims": "64", "--opset": "23", "--opsets": "20,23",
               "--num-kv-heads": "2", "--v-head-dims": "64"}  # fmt: skip


def parse_sizes(flag: str, given: Sequence[str] | None) -> list[int] | None:
    """Whole numbers of at least 1, none twice.

    Raises:
        InputError: anything else.
    """
    values = split_list(flag, given)
    if values is None:
        return None
    sizes = [parse_int(flag, value, minimum=1, example=_SIZE_FLAGS.get(flag, "1")) for value in values]
    for size in sizes:
        if sizes.count(size) > 1:
            raise InputError(f"{flag} has {size} twice; give each value once")
    return sizes


def parse_int(flag: str, text: str, *, minimum: int, maximum: int = _MAX_INT, example: str) -> int:
    """A whole number in plain digits, between `minimum` and `maximum`.

    Raises:
        InputError: anything else.
    """
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text) or not minimum <= int(text) <= maximum:
        limit = f"of at least {minimum}" if maximum == _MAX_INT else f"between {minimum} and {maximum}"
        gap = "" if flag.endswith(("=", ":")) else " "  # --set n=8, --shapes x:8x512
        raise InputError(f"{flag} must be a whole number {limit}, got {text!r}; write for example {flag}{gap}{example}")
    return int(text)


def parse_choices(
    flag: str, given: Sequence[str] | None, what: Literal["part", "variant", "dtype"]
) -> list[str] | None:
    """Names of parts, variants or dtypes.

    Raises:
        InputError: an unknown one; the message has all of them and the nearest.
    """
    known = {"part": problem.Part, "variant": problem.Variant, "dtype": problem.DType}[what]
    values = split_list(flag, given)
    for value in values or ():
        _check_known(flag, value, get_args(known))
    return values


def parse_masks(flag: str, given: Sequence[str] | None) -> list[str] | None:
    """Names of masks, such as `key_padding` or `causal_top_left+key_padding`.

    Raises:
        InputError: an unknown one.
    """
    values = split_list(flag, given)
    for value in values or ():
        try:
            parse_mask(value)
        except ProblemError as err:
            raise InputError(f"{flag}: {err}") from err
    return values


def parse_names(flag: str, given: Sequence[str] | None, known: Sequence[str]) -> list[str] | None:
    """Names out of a few.

    Raises:
        InputError: an unknown one; the message has all of them and the nearest.
    """
    values = split_list(flag, given)
    for value in values or ():
        _check_known(flag, value, known)
    return values


def parse_duration(flag: str, text: str | None) -> float | None:
    """Seconds of `300s`, `5m`, `1h`.

    Raises:
        InputError: not a duration above 0.
    """
    from attnbench.sweep.units import parse_duration as parse

    return None if text is None else _above_zero(flag, text, _blame(flag, parse, text))


def parse_positive(flag: str, text: str | None, *, example: str, may_be_zero: bool = False) -> float | None:
    """A finite number above 0.

    Raises:
        InputError: anything else.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        rule = "of at least 0" if may_be_zero else "above 0"
        raise InputError(f"{flag} must be a number {rule}, got {text!r}; write for example {flag} {example}")
    return value


def parse_size(flag: str, text: str | None) -> int | None:
    """Bytes of `8GiB`, `512MiB`.

    Raises:
        InputError: not a size above 0.
    """
    from attnbench.sweep.units import parse_size as parse

    return None if text is None else int(_above_zero(flag, text, _blame(flag, parse, text)))


def parse_out(flag: str, text: str | None) -> Path | None:
    """A folder that a run can be written to: new or empty. Nothing is made here.

    Raises:
        InputError: a file, a folder with something else in it, a place that cannot be written to, an odd name.
    """
    if text is None:
        return None
    path = parse_path(flag, text)
    if path.exists() and not path.is_dir():
        raise InputError(f"{flag} must be a folder, but {text!r} is a file; name another folder")
    if (path / "manifest.json").exists():
        raise InputError(f"{flag} {text!r} holds a run already; continue it with --resume, or name another folder")
    _check_writable(flag, text, path)
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{flag} must be a new or empty folder, but {text!r} has something in it; name another folder")
    return path


def make_out(kind: str, text: str | None) -> Path:
    """The folder for what a command finds, made before anything runs; without --out, results/KIND-DATE.

    Raises:
        InputError: as `parse_out`, or it cannot be made.
    """
    path = parse_out("--out", text) or Path("results") / f"{kind}-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise InputError(f"cannot make the folder {str(path)!r}: {err.strerror}; name another with --out") from err
    return path


def parse_bundle_out(flag: str, text: str) -> Path:
    """A folder for a bundle: its parent is there and takes new files. What it may replace is looked at later.

    Raises:
        InputError: a file, or a place that cannot be written to.
    """
    path = parse_path(flag, text)
    if path.exists() and not path.is_dir():
        raise InputError(f"{flag} must be a folder for a bundle, but {text!r} is a file; name another folder")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{flag} must lie in a folder that exists, got {text!r}; make the folder first")
    _check_writable(flag, text, path.absolute().parent)
    return path


def parse_file_out(flag: str, text: str, *, example: str = "attention.onnx", new_folder: Path | None = None) -> Path:
    """A file that can be written: a folder of that name is refused, a file is replaced.

    Args:
        flag: that it was given with.
        text: as it was given.
        example: a file name for the way out.
        new_folder: a folder that will be there in time, so that the file may lie in it.

    Raises:
        InputError: it is a folder, or the place cannot be written to.
    """
    path = parse_path(flag, text)
    if path.is_dir():
        raise InputError(f"{flag} must be a file, but {text!r} is a folder; name a file such as {example} in it")
    if path.exists() and not path.is_file():
        raise InputError(f"{flag} must be a file, but {text!r} is a device or pipe; name a file such as {example}")
    if text.endswith("/"):
        raise InputError(f"{flag} must be a file, got {text!r}; leave the last / out")
    if not path.parent.is_dir() and (new_folder is None or path.parent.absolute() != new_folder.absolute()):
        raise InputError(f"{flag} must lie in a folder that exists, got {text!r}; make the folder first")
    _check_writable(flag, text, path.parent)
    return path


def parse_run_dir(flag: str, text: str) -> Path:
    """A run directory that is there.

    Raises:
        InputError: it is not.
    """
    path = parse_path(flag, text)
    if not path.is_dir():
        raise InputError(f"{flag} must be a run directory, got {text!r}; list them with: ls results/")
    if not (path / "manifest.json").is_file():
        raise InputError(
            f"{flag} must be a run directory, but {text!r} has no manifest.json; name a folder that bench made"
        )
    return path


def parse_known(flag: str, text: str, known: Sequence[str]) -> str:
    """One of a few words.

    Raises:
        InputError: another one; the message has all of them and the nearest.
    """
    _check_known(flag, text, known)
    return text


def only_one(flag: str, values: Sequence[_T] | None) -> _T | None:
    """The one value of a flag that takes one.

    Raises:
        InputError: several, with commas.
    """
    if values is not None and len(values) != 1:
        raise InputError(
            f"--{flag.replace('_', '-')} takes one value, got {len(values)}; run the command once for each"
        )
    return None if values is None else values[0]


def bench_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `attnbench.api.bench` and `plan` from the flags of `bench`, as typer gives them.

    Only what was given is there, so that a sweep's own values hold for the rest.

    Raises:
        InputError: the first flag that is wrong.
    """
    budget_s = parse_duration("--time-budget", params["time_budget"])
    if params["resume"] is not None:
        _refuse_beside_resume(params)
        return {"resume": parse_run_dir("--resume", params["resume"]), "time_budget_s": budget_s}
    threads, seed, workers = params["threads"], params["seed"], params["gpu_workers"]
    is_file = params["onnx"] is not None or params["engine"] is not None
    given, baseline_precision = split_precision(params["baseline"])
    baseline = parse_arms("--baseline", given, is_file=is_file)
    arguments = {
        "sweep": params["sweep"],
        "preset": parse_preset(params["preset"]),
        "variants": parse_choices("--variants", params["variants"], "variant"),
        "part": parse_choices("--part", params["part"], "part"),
        "seq_lens": parse_sizes("--seq-lens", params["seq_lens"]),
        "kv_lens": parse_sizes("--kv-lens", params["kv_lens"]),
        "q_lens": parse_sizes("--q-lens", params["q_lens"]),
        "batch_sizes": parse_sizes("--batch-sizes", params["batch_sizes"]),
        "num_heads": parse_sizes("--num-heads", params["num_heads"]),
        "head_dims": parse_sizes("--head-dims", params["head_dims"]),
        "num_kv_heads": parse_sizes("--num-kv-heads", params["num_kv_heads"]),
        "v_head_dims": parse_sizes("--v-head-dims", params["v_head_dims"]),
        "masks": parse_masks("--masks", params["masks"]),
        "scale": parse_positive("--scale", params["scale"], example="0.125"),
        "bias": params["bias"] or None,
        "value_map": params["value_map"],
        "dtypes": parse_choices("--dtypes", params["dtypes"], "dtype"),
        "exporters": parse_plugins("--exporters", "exporter", params["exporters"]),
        "runtimes": parse_runtimes("--runtimes", params["runtimes"]),
        "opset": parse_sizes("--opset", params["opset"]),
        "options": split_list("--options", [*(params["options"] or ()), *arch_options(params.get("gpu_archs"))]),
        "baseline": only_one("baseline", baseline),
        "baseline_precision": baseline_precision,
        "device": params["device"],
        "gpu_workers": workers if workers is None else parse_known("--gpu-workers", workers, GPU_WORKERS),
        "fp32": None if params["fp32"] is None else parse_known("--fp32", params["fp32"], FP32_POLICIES),
        "threads": None if threads is None else parse_int("--threads", threads, minimum=1, maximum=4096, example="1"),
        "out": parse_out("--out", params["out"]),
        "time_budget_s": budget_s,
        "timeout_s": parse_duration("--timeout", params["timeout"]),
        "memory_limit_bytes": parse_size("--memory-limit", params["memory_limit"]),
        "seed": None if seed is None else parse_int("--seed", seed, minimum=0, example="0"),
        "require": parse_arms("--require", params["require"], is_file=is_file),
        "refine": params["refine"] or None,
        "stress": params["stress"] or None,
        "memory_budget_bytes": parse_size("--memory-budget", params["memory_budget"]),
        "measure_frontier": params["measure_frontier"] or None,
        "oom_skip": False if params["no_oom_skip"] else None,
    }
    return {key: value for key, value in arguments.items() if value is not None}


def split_precision(baseline: str | None) -> tuple[list[str] | None, str | None]:
    """`torch-sdpa:fp32` as the arm and the precision in which it is the baseline of all precisions."""
    if baseline is None:
        return None, None
    arm, _, precision = baseline.rpartition(":")
    return ([arm], precision) if arm and precision in get_args(problem.DType) else ([baseline], None)


def parse_preset(name: str | None) -> str | None:
    """The name of a preset.

    Raises:
        InputError: an unknown one.
    """
    return None if name is None else presets.find(name).name


def _refuse_beside_resume(params: Mapping[str, Any]) -> None:
    """`--resume` takes what decides a case from the run itself."""
    others = [_spelled(key) for key, value in params.items() if value and key not in _WITH_RESUME]
    if others:
        raise InputError(
            f"--resume takes its settings from the run, got {', '.join(others)} too; "
            "leave those out, or start a new run without --resume"
        )


def _spelled(key: str) -> str:
    return {"sweep": "SWEEP", "set_sizes": "--set"}.get(key, "--" + key.replace("_", "-"))


def _check_known(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{flag}: {plugins.unknown_name('value', value, known).replace('installed', 'known')}")


def _above_zero(flag: str, text: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise InputError(f"{flag} must be above 0, got {text!r}; leave it out for the default")
    return value


def _blame(flag: str, parse: Callable[[str], _T], text: str) -> _T:
    """Parse, with the flag in front of the complaint."""
    try:
        return parse(text)
    except InputError as err:
        raise InputError(f"{flag}: {err}") from err


def parse_path(flag: str, text: str) -> Path:
    """A path that a name can have; nothing says that it is there.

    Raises:
        InputError: it cannot be one.
    """
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in text):
        raise InputError(f"{flag} must be a path without line breaks or control characters, got {text!r}; rename it")
    if not text.strip():
        raise InputError(f"{flag} must be a path, got {text!r}; name a folder such as results/mine")
    path = Path(text)
    try:
        path.exists()
    except OSError as err:
        raise InputError(f"{flag} cannot be {text!r}: {err.strerror}; use another name") from err
    return path


def _check_writable(flag: str, text: str, path: Path) -> None:
    """Some existing folder at or above `path` must take new files."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise InputError(f"{flag} {text!r} cannot be made: {str(place)!r} is a file; name another folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"{flag} {text!r} cannot be written: {str(place)!r} is read-only; name another folder")
