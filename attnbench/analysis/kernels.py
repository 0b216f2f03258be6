"""Which attention kernel ran, where the runtime does not tell: the law of memory decides, or nothing does.

A kernel that never holds the scores needs memory that is linear in T; one that writes them out holds whole matrices.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from attnbench import interpreters
from attnbench.analysis.arm_laws import WHOLE_MATRIX, memory_bytes, memory_points, score_matrices
from attnbench.analysis.groups import Panel, make_panels, score_bytes
from attnbench.analysis.laws import Estimate, fit_law
from attnbench.analysis.least_squares import MIN_POINTS
from attnbench.masks import parse_mask
from attnbench.records import Record, known_size

UNKNOWN = "unknown"
EVIDENCE = "memory-law"
OTHER_KERNEL = "other_kernel"

# Who asks for one operator that is attention as a whole; the others write scores, softmax and product out.
_ASK_FUSED_EXPORTERS = frozenset({"onnx-attention", "onnx-contrib"})
_ASK_FUSED_RUNTIMES = frozenset({"torch-sdpa"})
_WRITTEN_OUT = frozenset({"math", "unfused"})
_MASK_COPIES = 2  # of a tensor mask that a runtime may make while it converts it


def with_kernels(records: Sequence[Record]) -> list[Record]:
    """Fill `attention_kernel` of `ok` rows that say unknown, and flag rows that ran another kernel than was asked.

    `fused`: the whole peak at some T, or the quadratic term of the arm's memory, is below half a score matrix.
    `unfused`: that term is above half a matrix more than copies of the mask can explain. Else it stays unknown, and
    `empty_reasons` says why for `kernel_evidence`.

    Returns:
        Records in the same order. Doing it again changes nothing.
    """
    told = {id(record): record for record in records}
    for group in _groups(record for record in records if _is_untold(record)):
        told |= _decided(group)
    return [_flagged(told[id(record)]) for record in records]


def asks_fused(record: Record) -> bool:
    """Does the row's arm ask for one operator that is attention as a whole?"""
    return record.exporter in _ASK_FUSED_EXPORTERS or interpreters.base(record.runtime) in _ASK_FUSED_RUNTIMES


def _is_untold(record: Record) -> bool:
    is_untold = record.attention_kernel in (None, UNKNOWN) or record.kernel_evidence == EVIDENCE
    return is_untold and record.status == "ok" and record.model is None  # a model has no score matrix to compare with


def _groups(records: Iterable[Record]) -> list[list[Record]]:
    """Rows that differ in T at most, and in arm."""
    found: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for r in records:
        found[r.run_id, r.v_head_dim, r.scale, r.bias].append(r)
    return list(found.values())


def _decided(group: Sequence[Record]) -> dict[int, Record]:
    """By id of the old record: the new one."""
    found: dict[int, Record] = {}
    for panel in make_panels(group):
        for arm in panel.arms:
            rows = [r for r in panel.row(arm) if r is not None]
            kernel, reason = _kernel(panel, rows)
            found |= {id(r): _with_kernel(r, kernel, reason) for r in rows}
    return found


def _kernel(panel: Panel, rows: Sequence[Record]) -> tuple[str, str]:
    """The kernel by the law of memory, and why it is unknown where it is."""
    if any(_peak_matrices(r) < WHOLE_MATRIX for r in rows):
        return "fused", ""  # no room for the scores, whatever else was held
    points = memory_points(panel, rows)
    if len(points) < MIN_POINTS:
        return UNKNOWN, f"the runtime does not tell; the law of memory needs {MIN_POINTS} lengths, {len(points)} there"
    matrices = score_matrices(panel, rows, fit_law(points))
    if matrices is None:
        return UNKNOWN, f"the runtime does not tell; scores do not grow as the square of {panel.x_label} here"
    return kernel_of(matrices, _mask_matrices(rows[0]))


def _peak_matrices(record: Record) -> float:
    """All that a call holds at its peak, in score matrices; infinite where it was not measured."""
    peak = memory_bytes(record)
    return math.inf if peak is None else peak / score_bytes(record)


def kernel_of(matrices: Estimate, mask_matrices: float) -> tuple[str, str]:
    """The kernel that so many score matrices mean, and why it is unknown where it is.

    Args:
        matrices: how many live at once, with the interval.
        mask_matrices: the size of the whole mask in score matrices, 0 without one.
    """
    if matrices.high < WHOLE_MATRIX:
        return "fused", ""
    if matrices.low > WHOLE_MATRIX + _MASK_COPIES * mask_matrices:
        return "unfused", ""
    interval = f"{matrices.low:.2f} to {matrices.high:.2f}"
    return UNKNOWN, f"the runtime does not tell; the law of memory leaves it open: {interval} score matrices"


def _mask_matrices(record: Record) -> float:
    """The whole mask of a row in score matrices (B, H, q_len, kv_len)."""
    mask = parse_mask(record.mask or "none")
    axes = {"batch_size": known_size(record.batch_size), "num_heads": known_size(record.num_heads)}
    if mask.form is not None and "q_len" in mask.form.dims:
        shared = [size for name, size in axes.items() if name not in mask.form.dims]
    elif mask.position:
        shared = list(axes.values())
    else:
        return 0.0
    share = 1.0
    for size in shared:
        share /= size
    return share


def _with_kernel(record: Record, kernel: str, reason: str) -> Record:
    reasons = {k: v for k, v in record.empty_reasons.items() if k not in ("attention_kernel", "kernel_evidence")}
    if reason:
        reasons["kernel_evidence"] = reason
    evidence = EVIDENCE if kernel != UNKNOWN else None
    update = {"attention_kernel": kernel, "kernel_evidence": evidence, "empty_reasons": reasons}
    return record.model_copy(update=update)


def _flagged(record: Record) -> Record:
    flags = [flag for flag in record.flags if flag != OTHER_KERNEL]
    pinned = record.runtime_options.get("backend")
    if pinned is None:
        is_other = asks_fused(record) and record.attention_kernel in _WRITTEN_OUT
    else:
        is_other = record.attention_kernel not in (None, UNKNOWN, pinned)
    if is_other:
        flags.append(OTHER_KERNEL)
    return record if flags == record.flags else record.model_copy(update={"flags": flags})
