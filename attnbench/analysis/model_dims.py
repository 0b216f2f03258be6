"""Which free dims of a model follow T, and which were set beside it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from attnbench.records import Record


class Models:
    """The free dims of the models that rows are about, by run."""

    def __init__(self, records: Iterable[Record]) -> None:
        seen: dict[tuple[str, str, str], dict[int | None, set[int]]] = defaultdict(lambda: defaultdict(set))
        for r in records:
            for dim, size in r.sizes.items():
                seen[r.run_id, r.model or "", dim][r.q_len].add(size)
        # One size at every T, and not the same at all: bound to it, as kv_len = T/2.
        self._following = {
            place
            for place, by_t in seen.items()
            if all(len(sizes) == 1 for sizes in by_t.values()) and len(set.union(*by_t.values())) > 1
        }

    def sizes_of(self, r: Record) -> str:
        """`batch=8, layers=2`: what does not follow T."""
        return ", ".join(
            f"{dim}={size}"
            for dim, size in r.sizes.items()
            if dim != r.bound and (r.run_id, r.model or "", dim) not in self._following
        )


def following_note(rows: Sequence[Record]) -> str:
    """`kv follows seq`: what changes with T in a chart of a model; empty where nothing does."""
    bound = rows[0].bound
    dims = [dim for dim in rows[0].sizes if dim != bound and len({r.sizes.get(dim) for r in rows}) > 1]
    return f"{', '.join(dims)} follow{'s' if len(dims) == 1 else ''} {bound}" if dims else ""
