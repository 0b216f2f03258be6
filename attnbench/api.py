"""The front door for Python: what the command line does, as functions that return what was measured."""

import contextlib
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.analysis.groups import make_panels
from attnbench.errors import InputError
from attnbench.measure import environment
from attnbench.runs import Run as Run
from attnbench.runs import open_run as open_run
from attnbench.sweep import grid, runner
from attnbench.sweep.plan import Plan
from attnbench.sweep.progress import Progress, Silent
from attnbench.sweep.rundir import RunDirectory

if TYPE_CHECKING:
    from attnbench.analysis.choice import Advice, Limits
    from attnbench.analysis.diff import Diff
    from attnbench.analysis.profiles import Partition
    from attnbench.analysis.workload import Requests
    from attnbench.interfaces import Array, Artifact

RESULTS = Path("results")
MAX_SWITCH_MS = 86.4e6  # of `advise`
_OF_MODEL = ("onnx", "module", "inputs", "engine", "bind", "sizes", "shapes", "load_inputs", "save_outputs")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What `advise` found."""

    advices: "list[Advice]"
    limits: "Limits"
    profiles: "dict[str, list[Partition]]"  # name of an advice -> the best cut into 1, 2, ... profiles
    has_workload: bool


def bench(
    sweep: str | Path | None = None,
    *,
    preset: str | None = None,
    part: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    seq_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    q_lens: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    num_heads: Sequence[int] | None = None,
    head_dims: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    masks: Sequence[str] | None = None,
    num_kv_heads: Sequence[int] | None = None,
    v_head_dims: Sequence[int] | None = None,
    scale: float | None = None,
    bias: bool | None = None,
    value_map: str | None = None,
    exporters: Sequence[str] | None = None,
    runtimes: Sequence[str] | None = None,
    opset: Sequence[int] | None = None,
    options: Sequence[str] | None = None,
    baseline: str | None = None,
    baseline_precision: str | None = None,
    device: str | None = None,
    gpu_workers: str | None = None,
    fp32: str | None = None,
    threads: int | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    time_budget_s: float | None = None,
    timeout_s: float | None = None,
    memory_limit_bytes: int | None = None,
    seed: int | None = None,
    require: Sequence[str] | None = None,
    oom_skip: bool | None = None,
    refine: bool | None = None,
    stress: bool | None = None,
    memory_budget_bytes: int | None = None,
    measure_frontier: bool | None = None,
    onnx: str | Path | None = None,
    module: str | None = None,
    inputs: str | Path | None = None,
    engine: str | Path | None = None,
    bind: Mapping[str, str] | None = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    load_inputs: str | Path | None = None,
    save_outputs: str | Path | None = None,
    progress: Progress | None = None,
    command: str | None = None,
    on_plan: Any = None,
) -> Run:
    """Run a sweep and write its run directory. The arguments are the flags of `attnbench bench`.

    Args:
        onnx: a model of your own instead of the built-in attention; it is copied, inspected and only then run.
        module: package.module:Class, a torch.nn.Module of your own, with `inputs`; judged by itself in float64.
        inputs: the TOML file that says what the module takes.
        engine: an engine of TensorRT or TensorRT-RTX, alone or beside the `onnx` that it was compiled from, which then
            judges it. An engine is code: open only those of people you trust.
        bind: free dim of the model -> what it is at T: `T`, `T/2`, `T+1`.
        sizes: free dim -> the size, or the sizes, to run at.
        shapes: input -> its shape, which gives the sizes of its free dims.
        load_inputs: a .npz of the inputs by name, instead of drawn ones; for one size.
        save_outputs: a .npz to write, with `ARM/OUTPUT` and `reference/OUTPUT`; for one size.
        out: the run directory to make; None: a new one under results/.
        resume: an interrupted run directory to finish; no other argument but time_budget_s goes with it.
        device: auto, cpu, or cuda:N for all runtimes that have the choice; auto: CUDA where there is a working one.
        gpu_workers: parked: workers of all arms wait on the GPU together; one-at-a-time: each has it alone, in a fresh
            process per round; auto: parked unless the compute mode or the memory of the GPU forbids it.
        fp32: strict: products of fp32 in full precision; default: in TF32 where the device has it.
        progress: told what goes on; None: silent.
        command: kept in the manifest; None: this Python call's argv.
        on_plan: called with the `Plan` before anything runs.

    Raises:
        InputError: a wrong value; nothing was run or written.
    """
    given = {
        name: tuple(value) if isinstance(value, list | tuple) else value
        for name, value in locals().items()
        if name in grid.Sweep.model_fields and value is not None
    }
    asked = {
        "onnx": onnx, "module": module, "inputs": inputs, "engine": engine, "bind": bind, "sizes": sizes,
        "shapes": shapes, "load_inputs": load_inputs, "save_outputs": save_outputs,
    }  # fmt: skip
    asked = {name: value for name, value in asked.items() if value}
    if resume is not None:
        return _resume(Path(resume), {**given, **asked}, time_budget_s, progress or Silent(), on_plan)
    with _preparing(sweep, given, asked) as prepared:
        if on_plan is not None:
            on_plan(prepared.plan)
        run_dir = RunDirectory.create(Path(out) if out is not None else _new_path(prepared.sweep.name))
        command = command or shlex.join(sys.argv)
        with run_dir.exclusive():
            runner.run(prepared, run_dir, command=command, progress=progress or Silent())
            return _finish(run_dir)


def plan(sweep: str | Path | None = None, **flags: Any) -> Plan:
    """What `bench` with the same arguments would do and take. Nothing is run or written.

    Raises:
        InputError: a wrong value.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    asked = {name: given.pop(name) for name in _OF_MODEL if name in given}
    with _preparing(sweep, given, asked) as prepared:
        return prepared.plan


@contextlib.contextmanager
def _preparing(
    sweep: str | Path | None, given: Mapping[str, Any], asked: Mapping[str, Any]
) -> Iterator[runner.Prepared]:
    """What is ready to run: the built-in attention, or a model of the user, whose files are gone after this."""
    if not asked:
        yield runner.prepare(_resolve(sweep, given))
        return
    from attnbench.model_bench import outputs
    from attnbench.model_bench.prepare import prepare
    from attnbench.model_bench.request import make_request

    request = make_request({**asked, "seq_lens": given.get("seq_lens")})
    if request.save_outputs is not None:
        outputs.refuse_unwritable(
            request.save_outputs, (request.onnx, request.engine, request.inputs, request.load_inputs)
        )
    with prepare(request, sweep, given) as prepared:
        yield prepared


def _finish(run_dir: RunDirectory) -> Run:
    """The report, and the outputs of a model where they were asked for."""
    run = _report(run_dir)
    target = ((run.manifest.get("model") or {}).get("request") or {}).get("save_outputs")
    if target is not None:
        from attnbench.model_bench import outputs

        outputs.gather(run_dir.path, Path(target))
    return run


def _resolve(sweep: str | Path | None, given: Mapping[str, Any]) -> grid.Sweep:
    if str(sweep) == "full" and "dtypes" not in given:
        given = {**given, "dtypes": environment.hardware_dtypes()}
    return grid.resolve(sweep, given)


def _resume(path: Path, given: Mapping[str, Any], time_budget_s: float | None, progress: Progress, on_plan: Any) -> Run:
    others = sorted(set(given) - {"time_budget_s"})
    if others:
        raise InputError(f"--resume runs with the settings of {str(path)!r}; leave out {', '.join(others)}")
    if RunDirectory.open(path).read_manifest().get("model") is None:
        run_dir, prepared = runner.resume(path, time_budget_s=time_budget_s)
    else:
        from attnbench.model_bench import prepare

        run_dir, prepared = prepare.resume(path, time_budget_s=time_budget_s)
    if on_plan is not None:
        on_plan(prepared.plan)
    with run_dir.exclusive():
        runner.run(prepared, run_dir, command="", progress=progress, resumed=True)
        return _finish(run_dir)


def _new_path(name: str) -> Path:
    path = RESULTS / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return path if not path.exists() else path.with_name(f"{path.name}-{secrets.token_hex(2)}")


def diff(old: "Run | str | Path", new: "Run | str | Path") -> "Diff":
    """Compare two runs case by case; `Diff.compared` has the findings, `Diff.adverse(category)` counts what got worse.

    Raises:
        RecordsError: not a run, of another version, or damaged.
    """
    from attnbench.analysis.diff import Side
    from attnbench.analysis.diff import diff as compare

    runs = [run if isinstance(run, Run) else open_run(run) for run in (old, new)]
    return compare(*(Side(name=str(run.path), rows=run.rows, manifest=run.manifest) for run in runs))


def advise(
    run: "Run | str | Path",
    workload: "str | Path | Sequence[Requests] | None" = None,
    *,
    max_latency_ms: float | None = None,
    max_memory_bytes: int | None = None,
    max_error: float | None = None,
    max_profiles: int = 4,
    switch_ms: float = 0.0,
) -> "Answer":
    """Which arm for which request: `Answer.advices` per variant, `Answer.profiles` for compiled engines.

    Args:
        run: a run directory or an open run.
        workload: a CSV file (seq_len, perhaps batch_size and count), or its rows; None: every measured size once.
        max_latency_ms: of every single request, at the upper end of its interval.
        max_memory_bytes: likewise, above the loaded and bound model.
        max_error: of the worst row, relative.
        max_profiles: into how many optimisation profiles the lengths of a workload may be cut.
        switch_ms: what a change of profile takes; it is not measured here.

    Raises:
        InputError: a workload that cannot be read, or a switch_ms that cannot be.
        RecordsError: not a run, of another version, or damaged.
    """
    from attnbench.analysis import choice
    from attnbench.analysis.workload import read_workload

    if not 0.0 <= switch_ms <= MAX_SWITCH_MS:
        raise InputError(f"switch_ms must be from 0 to {MAX_SWITCH_MS:g} (a day), got {switch_ms}; in milliseconds")
    opened = run if isinstance(run, Run) else open_run(run)
    requests = read_workload(Path(workload)) if isinstance(workload, str | Path) else workload
    limits = choice.Limits(latency_ms=max_latency_ms, memory_bytes=max_memory_bytes, error=max_error)
    floor = opened.manifest.get("noise_floor")
    found = choice.advise(make_panels(opened.rows), requests, limits, floor, opened.block_medians())
    cut = {a.name: choice.profiles_of(a, most=max_profiles, switch_ms=switch_ms) for a in found if requests is not None}
    return Answer(advices=found, limits=limits, profiles=cut, has_workload=requests is not None)


def rebuild_report(path: str | Path) -> Run:
    """CSV, Parquet, plots and HTML again, from the records of a run directory.

    Raises:
        RecordsError: not a run, of another version, or damaged.
    """
    return _report(RunDirectory.open(Path(path)))


def _report(run_dir: RunDirectory) -> Run:
    from attnbench.report.build import build_report

    run = open_run(run_dir.path)
    run_dir.write_manifest(run.manifest)
    files = build_report(run.path, run.rows, dict(run.manifest), [*run.manifest.get("notices", []), *run.notices])
    return Run(
        path=run.path,
        rows=run.rows,
        manifest=run.manifest,
        notices=[*run.notices, *files.problems],
        is_reported=files.csv is not None and files.html is not None,
    )


def export(
    *,
    exporter: str = "onnx-attention",
    preset: str | None = None,
    part: str | None = None,
    variant: str | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str | None = None,
    num_kv_heads: int | None = None,
    v_head_dim: int | None = None,
    mask: str | None = None,
    scale: float | None = None,
    bias: bool | None = None,
    value_map: str | None = None,
    opset: int | None = None,
    seed: int = 0,
    out: Path,
) -> "Artifact":
    """Write one problem as one ONNX file, verified at three T through a runtime that is installed.

    What is not given is the preset's, else block self with 8 heads of 64 in fp32.

    Raises:
        InputError: a wrong value; nothing was written.
        AttnbenchError: unavailable, unsupported, or the named error of the export or its verification.
    """
    from attnbench import presets
    from attnbench.sweep import single

    given = {"part": part, "variant": variant, "num_heads": num_heads, "head_dim": head_dim, "dtype": dtype,
             "num_kv_heads": num_kv_heads, "v_head_dim": v_head_dim, "mask": mask, "scale": scale,
             "bias": bias, "value_map": value_map}  # fmt: skip
    problem = presets.make_problem(preset, given)
    return single.export(exporter=exporter, problem=problem, opset=opset, seed=seed, out=Path(out))


def reference_attention(
    q: "Array", k: "Array", v: "Array", *, scale: float | None = None, mask: str = "none"
) -> "Array":
    """Attention in float64 by the judge of all runtimes: q (B, H, q_len, D), k and v (B, H, kv_len, D)."""
    from attnbench.reference import reference_attention as judge

    return judge(q, k, v, scale=scale, mask=mask)
