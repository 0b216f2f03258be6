"""The one row that every case yields, and the files that hold rows."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from attnbench.errors import RecordsError

SCHEMA_VERSION = 1

Status = Literal[
    "ok", "mismatch", "compiled", "unsupported", "unavailable", "oom", "timeout", "crashed", "error", "skipped"
]
STATUSES: tuple[str, ...] = get_args(Status)
COMPILES_ONLY = "compiles_only"  # a flag: the arm can be compiled here and not run
FAILED: frozenset[str] = frozenset({"mismatch", "crashed", "error", "timeout"})  # exit code 1


class Record(BaseModel):
    """One case. The field order is the column order of records.csv. None: not measured; why is in `empty_reasons`."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    schema_version: int = SCHEMA_VERSION
    run_id: str
    started_at_utc: str
    case_id: str
    problem_id: str
    arm: str
    part: str
    variant: str
    mask: str | None = None  # this and the sizes of attention: None where the problem is a model of the user
    batch_size: int | None = None
    q_len: int | None = None  # of a model: T, the free dim that is swept; None where none is
    kv_len: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    embed_dim: int | None = None
    dtype: str
    exporter: str
    opset: int | None = None
    runtime: str
    runtime_version: str | None = None
    device: str | None = None
    device_name: str | None = None
    threads: int | None = None
    compute_precision: str | None = None
    attention_kernel: str | None = None
    kernel_evidence: str | None = None
    status: Status
    reason: str = ""
    latency_ms_median: float | None = None
    latency_ms_ci_low: float | None = None
    latency_ms_ci_high: float | None = None
    latency_ms_p90: float | None = None
    latency_ms_p99: float | None = None
    sample_count: int | None = None
    round_count: int | None = None
    stopped_by: str | None = None  # precision, budget, rounds, outlying
    latency_scope: str | None = None  # host, host_with_copies, device, device_graph
    baseline_arm: str | None = None
    speedup_vs_baseline: float | None = None
    speedup_ci_low: float | None = None
    speedup_ci_high: float | None = None
    verdict: str | None = None  # faster, slower, same, ambiguous
    first_call_ms: float | None = None
    load_ms: float | None = None
    build_ms: float | None = None
    export_ms: float | None = None
    peak_host_bytes: int | None = None
    kept_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    planned_activation_bytes: int | None = None
    artifact_bytes: int | None = None
    artifact_sha256: str | None = None
    worst_row_rel_err: float | None = None
    worst_row_limit: float | None = None
    rel_fro_err: float | None = None
    max_abs_err: float | None = None
    gain_err: float | None = None
    nan_count: int | None = None
    err_vs_floor: float | None = None
    err_vs_eager: float | None = None
    flops: int | None = None
    gflops_per_s: float | None = None
    peak_fraction: float | None = None
    bytes_min: int | None = None
    gbytes_per_s: float | None = None
    tokens_per_s: float | None = None
    flags: list[str] = []  # contended, throttled, device_shared, beats_roofline, other_kernel, compiles_only
    empty_reasons: dict[str, str] = {}  # column -> why it is empty
    seed: int
    attnbench_version: str
    # beyond the promised columns
    fastest: bool | None = None  # member of the problem's set of fastest arms (set by `verdicts.judge`)
    fastest_p: float | None = None  # Holm-adjusted sign-test p of "slower than the problem's fastest arm"
    ratio_to_fastest: float | None = None  # time(this) / time(the problem's fastest arm), median over rounds
    noise_log_ratio: float | None = None  # baseline only: log ratio of its two replicas (A/A)
    peaked_worst_row_rel_err: float | None = None
    peaked_worst_row_limit: float | None = None
    peaked_gain_err: float | None = None
    gain_limit: float | None = None
    error_rows: int | None = None  # rows of the output that the oracle judged
    output_rows: int | None = None  # rows of the output
    artifact_verified: str | None = None  # "ort-cpu at T = ..." or "unverified: reason"
    memory_limit_bytes: int | None = None
    v_head_dim: int | None = None  # None in rows of before it was told: head_dim
    scale: float | None = None  # of the scores; None in rows of before it was told: 1/sqrt(head_dim)
    value_map: str | None = None  # joint, low_rank; None in rows of before it was told: joint
    bias: bool | None = None  # of the projections; None in rows of before it was told: without
    # same bits, asked at T <= 64 in the same session (measure/determinism.py); no is no failure
    bitwise_repeatable: bool | None = None  # from call to call
    batch_invariant: bool | None = None  # an item alone and in a batch of two
    prefix_invariant: bool | None = None  # the first tokens alone and before further ones
    # --stress: worst row / allowed by class of inputs (inputs.STRESS_CLASSES), at T <= 256 for many scores; above 1 is
    # outside the band of `peaked` (near ties and masked rows: of `normal`)
    stress: dict[str, float] = {}
    first_logit_scale_outside: int | None = None  # the smallest spread of logits tried at which it leaves the band
    runtime_options: dict[str, str] = {}  # that the runtime was asked for, such as backend=math; they are in `arm` too
    facts: dict[str, Any] = {}  # what really ran, as the runtime told it
    model: str | None = None  # of the user: a file's name, package.module:Class; None: the built-in attention
    sizes: dict[str, int] = {}  # of a model's free dims
    bound: str | None = None  # the free dim of a model that is T
    output: str | None = None  # of a model: the one that the columns of numerics are about, nearest to its limit


COLUMNS: tuple[str, ...] = tuple(Record.model_fields)


def known_size(size: int | None) -> int:
    """A size that every row of the built-in attention has.

    Raises:
        RecordsError: the row is of a model of the user, which has none.
    """
    if size is None:
        raise RecordsError("rows of a model have no sizes of attention; leave rows of part 'model' out here")
    return size


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Append whole lines in one write, flushed to disk; on failure the file is cut back to what it was.

    Raises:
        OSError: the disk is full or the file cannot be written; the file is as before.
    """
    lines = "".join(r.model_dump_json() + "\n" for r in records).encode()
    with path.open("ab", buffering=0) as f:
        size = f.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(lines):
                written += f.write(lines[written:])
            os.fsync(f.fileno())
        except OSError:
            f.truncate(size)
            raise


def read_records(path: Path) -> tuple[list[Record], list[str]]:
    """All records of a JSONL file, and notices about what was left out (a torn last line).

    Raises:
        RecordsError: missing, of another schema version, or damaged before its last line.
    """
    records: list[Record] = []
    notices: list[str] = []
    for number, line, is_last in _lines(path):
        try:
            fields = json.loads(line)
        except ValueError as err:
            if is_last:
                notices.append(f"{path}: the last line ({number}) is torn and was dropped")
                continue
            raise RecordsError(
                f"{path}: line {number} is not JSON ({err}); restore the file or start a new run"
            ) from err
        records.append(_record(path, number, fields))
    return records, notices


def _lines(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line number, text, and whether it is an unfinished or final line."""
    try:
        blob = path.read_bytes()
    except OSError as err:
        raise RecordsError(f"cannot read records at {path}: {err.strerror}; name a run directory of attnbench") from err
    lines = blob.decode("utf-8", errors="replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for i, line in enumerate(lines, 1):
        if line.strip():
            yield i, line, i == len(lines)


def _record(path: Path, number: int, fields: Any) -> Record:
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordsError(
            f"{path}: line {number} has schema_version {version!r}, this attnbench reads {SCHEMA_VERSION}; "
            "use the attnbench version that wrote the run"
        )
    try:
        return Record.model_validate(fields)
    except ValidationError as err:
        first = err.errors()[0]
        column = ".".join(str(x) for x in first["loc"])
        raise RecordsError(f"{path}: line {number}, column {column}: {first['msg']}") from err
