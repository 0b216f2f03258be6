"""A sweep: what the user asked, checked, and the problems and arms that it means."""

import difflib
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from attnbench import interpreters, presets, trt_compiler
from attnbench.errors import InputError
from attnbench.problem import DType, Part, Problem, ValueMap, Variant
from attnbench.sweep import devices, runtime_options
from attnbench.sweep.arm import TORCH as TORCH
from attnbench.sweep.arm import Arm as Arm
from attnbench.sweep.grid_checks import check_sweep, masks_of, type_rule
from attnbench.sweep.units import MAX_SIZE_BYTES, parse_duration, parse_size

DEFAULT_EXPORTERS = ("onnx-decomposed", "onnx-attention", "onnx-contrib")
DEFAULT_RUNTIMES = ("torch-eager", "torch-sdpa", "ort-cpu", "openvino")
DEFAULT_COMPILER = "tensorrt-rtx"  # a default too, where it is installed and the time budget has room for it
COMPILER_BUDGET_S = 120.0  # it has: its rows take some ten seconds
DEFAULT_BASELINE = "torch-sdpa"
# Arms left out unless a flag names exporters or runtimes: neither loads com.microsoft's packed Attention.
NOT_DEFAULT_ARMS = frozenset({"onnx-contrib@openvino", "onnx-contrib@tensorrt-rtx"})
_SWITCHES = frozenset({"oom_skip", "refine", "measure_frontier", "bias", "stress"})
Fp32 = Literal["strict", "default"]


class Sweep(BaseModel):
    """The grid and how it is run. The names are those of the flags and of a TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "default"
    preset: str | None = None  # a model of presets; it stands for the keys that nothing else sets
    part: tuple[str, ...] = ("block",)
    variants: tuple[str, ...] = ("self", "cross", "causal")
    seq_lens: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    kv_lens: tuple[int, ...] = ()
    q_lens: tuple[int, ...] = (1,)  # new tokens of a decode step
    batch_sizes: tuple[int, ...] = (1,)
    num_heads: tuple[int, ...] = (8,)
    head_dims: tuple[int, ...] = (64,)
    dtypes: tuple[str, ...] = ("fp32",)
    masks: tuple[str, ...] = ()  # none: what the variant means
    num_kv_heads: tuple[int, ...] = ()  # none: as many as heads
    v_head_dims: tuple[int, ...] = ()  # none: head_dim
    scale: float | None = None
    bias: bool = False
    value_map: ValueMap = "joint"
    exporters: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    opset: tuple[int, ...] = ()
    options: tuple[str, ...] = ()  # of runtimes, as in runtime_options
    baseline: str = DEFAULT_BASELINE
    baseline_precision: DType | None = None  # a table compares every dtype with the baseline in this one
    device: str = devices.AUTO
    gpu_workers: devices.GpuWorkers = "auto"
    fp32: Fp32 = "strict"  # default: products of fp32 in TF32 where the device has it
    threads: int | None = None
    seed: int = 0
    time_budget_s: float | None = 315.0  # five minutes of measuring, and what is only compiled
    timeout_s: float = 60.0
    memory_limit_bytes: int | None = None
    require: tuple[str, ...] = ()
    oom_skip: bool = True
    refine: bool = False
    memory_budget_bytes: int | None = None
    measure_frontier: bool = False
    stress: bool = False

    @field_validator("runtimes", mode="after")
    @classmethod
    def _absolute_interpreters(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_by_rule(interpreters.absolute, value) for value in values)

    @field_validator("require", mode="after")
    @classmethod
    def _absolute_arms(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_by_rule(interpreters.absolute_arm, value) for value in values)

    @field_validator("baseline", mode="after")
    @classmethod
    def _absolute_arm(cls, value: str) -> str:
        return _by_rule(interpreters.absolute_arm, value)

    @field_validator(
        *("part", "variants", "seq_lens", "kv_lens", "q_lens", "batch_sizes", "num_heads", "head_dims", "dtypes"),
        *("exporters", "runtimes", "opset", "require", "masks", "num_kv_heads", "v_head_dims", "options"),
        mode="after",
    )
    @classmethod
    def _no_duplicates(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"{value!r} is given twice; name each value once")
        return values

    @field_validator(
        *("part", "variants", "seq_lens", "q_lens", "batch_sizes", "num_heads", "head_dims", "dtypes"), mode="after"
    )
    @classmethod
    def _not_empty(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("is empty; name at least one value")
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name in _SWITCHES and type(value) is not bool:
            raise ValueError("must be true or false, without quotes")
        if info.field_name not in _SWITCHES and True in [type(v) is bool for v in _as_list(value)]:
            raise ValueError("must not be true or false; write a number or a name")
        return value

    @field_validator("q_lens", "num_kv_heads", "v_head_dims", mode="after")
    @classmethod
    def _sizes(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if min(values, default=1) < 1:
            raise ValueError("must be whole numbers of at least 1; name such as 2")
        return values

    @field_validator("name", mode="after")
    @classmethod
    def _name(cls, value: str) -> str:
        if not value.strip() or "/" in value or not value.isprintable():
            raise ValueError("must be the name of a folder, without / and control characters; rename the sweep")
        return value

    @field_validator("opset", mode="after")
    @classmethod
    def _opset(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if min(values, default=1) < 1:
            raise ValueError("must be at least 1; name one such as 23")
        return values

    @field_validator("device", mode="after")
    @classmethod
    def _device(cls, value: str) -> str:
        try:
            return devices.check_name(value)
        except InputError as err:
            raise ValueError(str(err).removeprefix("device ")) from err

    @field_validator("threads", mode="after")
    @classmethod
    def _threads(cls, value: int | None) -> int | None:
        if value is not None and not 1 <= value <= 4096:
            raise ValueError("must be between 1 and 4096")
        return value

    @field_validator("seed", mode="after")
    @classmethod
    def _seed(cls, value: int) -> int:
        if not 0 <= value < 2**63:
            raise ValueError("must be between 0 and 2^63 - 1")
        return value

    @field_validator("time_budget_s", "timeout_s", mode="after")
    @classmethod
    def _positive(cls, value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError("must be a finite number of seconds above 0")
        return value

    @field_validator("timeout_s", mode="after")
    @classmethod
    def _enough(cls, value: float) -> float:
        if value < 0.1:
            raise ValueError("must be at least 0.1s: a worker needs that to answer at all")
        return value

    @field_validator("memory_budget_bytes", mode="after")
    @classmethod
    def _memory_budget(cls, value: int | None) -> int | None:
        if value is not None and not 1 << 20 <= value < MAX_SIZE_BYTES:
            raise ValueError("must be at least 1MiB, below 8EiB, in bytes")
        return value

    @field_validator("memory_limit_bytes", mode="after")
    @classmethod
    def _memory(cls, value: int | None) -> int | None:
        if value is not None and not 256 << 20 <= value < MAX_SIZE_BYTES:
            raise ValueError("must be at least 256MiB (a worker with torch loaded needs that), below 8EiB, in bytes")
        return value


BUILT_IN: dict[str, dict[str, Any]] = {
    "quick": {"variants": ("self", "causal"), "seq_lens": (128, 512, 1024), "time_budget_s": 50.0},
    "default": {},
    "full": {
        "part": ("block", "core"),
        "batch_sizes": (1, 8),
        "time_budget_s": None,
    },
}

# How the flags of the command line and the keys of a TOML file may also be written.
ALIASES = {"parts": "part", "time_budget": "time_budget_s", "timeout": "timeout_s", "opsets": "opset",
           "memory_limit": "memory_limit_bytes", "memory_budget": "memory_budget_bytes",
           "mask": "masks", "kv_heads": "num_kv_heads", "v_head_dim": "v_head_dims", "heads": "num_heads",
           "head_dim": "head_dims", "option": "options",
           "batch_size": "batch_sizes", "dtype": "dtypes"}  # fmt: skip


def _by_rule(rule: Callable[[str], str], text: str) -> str:
    """In the words of a validator."""
    try:
        return rule(text)
    except InputError as err:
        raise ValueError(f"cannot be: {err}") from err


def nearest(value: str, names: Iterable[str]) -> str:
    """`; did you mean X?` when a known name is close."""
    close = difflib.get_close_matches(value, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def resolve(sweep: str | Path | None, overrides: Mapping[str, Any]) -> Sweep:
    """A built-in name or a TOML file, with flags on top.

    Raises:
        InputError: an unknown sweep, key or value; the message has value, rule and way out.
    """
    name = str(sweep) if sweep is not None else "default"
    if name in BUILT_IN:
        fields: dict[str, Any] = {"name": name, **BUILT_IN[name]}
    else:
        fields = {"name": Path(name).stem, **_read_toml(name)}
    given = {k: v for k, v in _canonical(overrides, "flags").items() if v is not None}
    if (preset := given.get("preset")) is not None:
        fields |= presets.find(preset).sweep_keys()
    elif fields.get("preset") is not None:
        fields = presets.find(str(fields["preset"])).sweep_keys() | fields
    fields |= given
    return validate(fields, where=f"sweep {name}")


def _read_toml(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.suffix != ".toml" and not path.exists():
        raise InputError(
            f"no sweep {name!r}; built in: {', '.join(BUILT_IN)}; or name a .toml file{nearest(name, BUILT_IN)}"
        )
    try:
        with path.open("rb") as f:
            return _canonical(tomllib.load(f), str(path))
    except OSError as err:
        raise InputError(f"cannot read the sweep file {name!r}: {err.strerror}; name a readable .toml file") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise InputError(f"{name!r} is not TOML: {err}") from err


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _canonical(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in fields.items():
        target = ALIASES.get(key.replace("-", "_"), key.replace("-", "_"))
        if target not in Sweep.model_fields:
            known = [*Sweep.model_fields, *ALIASES]
            raise InputError(f"{where}: no key {key!r}; known: {', '.join(Sweep.model_fields)}{nearest(key, known)}")
        if target in result:
            raise InputError(f"{where}: {target!r} is given twice, under two of its names ({key!r}); keep one")
        if isinstance(value, str) and target in _PARSERS:
            try:
                value = _PARSERS[target](value)
            except InputError as err:
                raise InputError(f"{where}: {key}: {err}") from err
        elif isinstance(value, str | int) and _is_list(target) and not isinstance(value, bool):
            value = (value,)
        result[target] = value
    return result


_PARSERS: dict[str, Callable[[str], float]] = {
    "time_budget_s": parse_duration, "timeout_s": parse_duration, "memory_limit_bytes": parse_size,
    "memory_budget_bytes": parse_size,
}  # fmt: skip


def _is_list(field: str) -> bool:
    return "tuple" in str(Sweep.model_fields[field].annotation)


def validate(fields: Mapping[str, Any], *, where: str) -> Sweep:
    """A checked sweep: field by field, then every problem that it means.

    Raises:
        InputError: the first thing that is wrong.
    """
    try:
        sweep = Sweep.model_validate(dict(fields), strict=False)
    except ValidationError as err:
        first = err.errors()[0]
        key = str(first["loc"][0])
        is_ours = first["type"] == "value_error"
        rule = str(first["ctx"]["error"]) if is_ours else type_rule(key, Sweep.model_fields[key].annotation)
        got = repr(first["input"])
        told = "" if rule.endswith(got) else f" (got {got})"
        raise InputError(f"{where}: {key} {rule}{told}") from err
    check_sweep(sweep)
    problems(sweep)
    return sweep


def problems(sweep: Sweep) -> list[Problem]:
    """All problems of the sweep, short T first, so that what a time budget cuts off is the longest T.

    Raises:
        ProblemError: a size or name that cannot be.
    """
    found = [
        Problem.make(
            part=cast(Part, part),
            variant=cast(Variant, variant),
            seq_len=seq_len,
            kv_len=kv_len,
            q_len=q_len,
            batch_size=batch_size,
            num_heads=num_heads,
            head_dim=head_dim,
            dtype=cast(DType, dtype),
            num_kv_heads=num_kv_heads,
            mask=mask,
            v_head_dim=v_head_dim,
            scale=sweep.scale,
            bias=sweep.bias and part == "block",
            value_map=sweep.value_map if part == "block" else "joint",
        )
        for seq_len in sweep.seq_lens
        for batch_size in sweep.batch_sizes
        for num_heads in sweep.num_heads
        for head_dim in sweep.head_dims
        for dtype in sweep.dtypes
        for part in sweep.part
        for variant in sweep.variants
        for mask in masks_of(sweep, variant)
        for num_kv_heads in sweep.num_kv_heads or (None,)
        for v_head_dim in sweep.v_head_dims or (None,)
        for kv_len in _kv_lens(sweep, part, variant)
        for q_len in (sweep.q_lens if variant == "decode" else (1,))
        if (part, variant) != ("core", "decode")
    ]
    unique = {p.problem_id: p for p in found}
    return sorted(unique.values(), key=lambda p: p.batch_size * p.q_len * max(p.q_len, p.kv_len))


def _kv_lens(sweep: Sweep, part: str, variant: str) -> Sequence[int | None]:
    takes = variant == "cross" or (part, variant) == ("core", "causal")
    return sweep.kv_lens if sweep.kv_lens and takes else (None,)


def arms(
    sweep: Sweep, takes_artifact: Mapping[str, bool], told: Mapping[str, tuple[str, str]] | None = None,
    runs: Callable[[str, str], bool] = lambda exporter, runtime: True,
) -> list[Arm]:  # fmt: skip
    """The arms of the sweep, the baseline first; `takes_artifact` says it of every runtime selected.

    `told` is what labels say of other interpreters, by runtime; `runs`: are an exporter and a runtime that takes files
    an arm? The baseline is added when it was not selected, and
    where options were given to its runtime.
    """
    files = [(exporter, opset) for exporter in sweep.exporters or DEFAULT_EXPORTERS for opset in sweep.opset or (None,)]
    chosen: list[Arm] = []
    for runtime in selected_runtimes(sweep):
        if runtime == DEFAULT_COMPILER and runtime not in takes_artifact:
            continue
        asked = runtime_options.combinations(sweep.options, runtime)
        own = [(exporter, opset) for exporter, opset in files if runs(exporter, runtime)]
        for exporter, opset in own if takes_artifact[runtime] else [(TORCH, None)]:
            for options in dict.fromkeys([*asked, ()]):
                arm = Arm(
                    exporter=exporter, runtime=runtime, opset=opset, options=options,
                    interpreter=(told or {}).get(runtime),
                )  # fmt: skip
                chosen += [arm] if options in asked or sweep.baseline in (arm.label, arm.asked) else []
    if not sweep.exporters and not sweep.runtimes:
        chosen = [a for a in chosen if f"{a.exporter}@{a.runtime}" not in NOT_DEFAULT_ARMS]
    return sorted(chosen, key=lambda a: sweep.baseline not in (a.label, a.asked))


def selected_runtimes(sweep: Sweep) -> list[str]:
    """The runtimes that the sweep needs, the baseline's included."""
    names = list(sweep.runtimes or DEFAULT_RUNTIMES)
    baseline = interpreters.split_arm(sweep.baseline)[1].partition("[")[0]
    is_there = baseline in names or interpreters.names_interpreter(sweep.baseline, names)
    names = names if is_there else [*names, baseline]
    is_asked = any(text.startswith(f"{DEFAULT_COMPILER}:") for text in sweep.options)
    has_room = sweep.time_budget_s is None or sweep.time_budget_s >= COMPILER_BUDGET_S
    is_added = not sweep.runtimes and DEFAULT_COMPILER not in names and (is_asked or has_room)
    return [*names, DEFAULT_COMPILER] if is_added and trt_compiler.is_installed() else names
