"""Stable names of problems and cases for programs that compare runs: CI, experiment trackers, pyperf."""

from collections import Counter
from collections.abc import Callable, Sequence

from attnbench.analysis.groups import form_of
from attnbench.problem import USUAL_MASK
from attnbench.records import Record
from attnbench.report.text import printable


def geometry_name(r: Record) -> str:
    """`block.fp32.b1.h8x64.self`: part, dtype, batch size, heads x size of a head, variant.

    `h8kv2x64` where keys have fewer heads; `self-NAME` where the mask is not the variant's usual one; what else is not
    usual of the problem follows, as `h8x64-values_of_32-scale_0.3-bias`. A model's is
    `model.encoder.onnx.fp32.batch8`: its name, dtype and the sizes beside T.
    """
    if r.model is not None:
        others = "".join(f".{dim}{size}" for dim, size in r.sizes.items() if dim != r.bound)
        return printable(f"{r.part}.{r.model}.{r.dtype}{others}")
    keys = f"kv{r.num_kv_heads}" if r.num_kv_heads != r.num_heads else ""
    form = "".join(f"-{word.replace(' ', '_')}" for word in form_of(r).split(", ") if word)
    mask = "" if r.mask == USUAL_MASK.get(r.variant, "none") else f"-{r.mask}"
    return printable(f"{r.part}.{r.dtype}.b{r.batch_size}.h{r.num_heads}{keys}x{r.head_dim}{form}.{r.variant}{mask}")


def length_name(r: Record) -> str:
    """`128`, or `128x64` where q_len and kv_len differ; empty for a model of which no size is swept."""
    if r.q_len is None:
        return ""
    return str(r.q_len) if r.q_len == r.kv_len else f"{r.q_len}x{r.kv_len}"


def case_names(records: Sequence[Record]) -> list[str]:
    """One name per record, none twice: `block.fp32.b1.h8x64.self.T128/onnx-attention@ort-cpu`.

    The same in every run of the same cases. Only where rows of several runs stand together, `~RUN_ID` follows.
    """
    lengths = (length_name(r) for r in records)
    places = (geometry_name(r) + (f".T{length}" if length else "") for r, length in zip(records, lengths, strict=True))
    return told_apart(records, [f"{place}/{printable(r.arm)}" for place, r in zip(places, records, strict=True)])


def told_apart(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """The names, with the run, then the case, then a number behind those that are there twice."""
    extras: tuple[Callable[[Record], str], ...] = (lambda r: r.run_id, lambda r: r.case_id)
    found = list(names)
    for extra in extras:
        count = Counter(found)
        found = [f"{name}~{extra(r)}" if count[name] > 1 else name for name, r in zip(found, records, strict=True)]
    count = Counter(found)
    return [f"{name}~{i}" if count[name] > 1 else name for i, name in enumerate(found)]
