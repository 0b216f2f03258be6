"""What a sweep must not ask: values that none of its problems would use, masks that fit no variant."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from attnbench.errors import InputError
from attnbench.masks import parse_mask

if TYPE_CHECKING:
    from attnbench.sweep.grid import Sweep


def type_rule(key: str, annotation: Any) -> str:
    """What the value of a key of a sweep must be, in words, by its type and the unit in its name."""
    if key.endswith("_s"):
        return 'must be a time such as "90s", or a number of seconds'
    if key.endswith("_bytes"):
        return 'must be a size such as "8GiB", or a whole number of bytes'
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind not in (type(None), ...)]
    if isinstance(kinds[0], str):
        return f"must be {' or '.join(map(repr, kinds))}"
    word = {int: "a whole number", float: "a number", str: "a name in quotes"}[kinds[0]]
    return f"must be {word}{' or a list of such' if 'tuple' in str(annotation) else ''}"


def check_sweep(sweep: "Sweep") -> None:
    """Nothing that was asked is left out without a word.

    Raises:
        InputError: the first thing that no problem of the sweep would use.
    """
    variants = ", ".join(sweep.variants)
    if sweep.kv_lens and not _takes_kv_lens(sweep):
        raise InputError(
            f"kv_lens {list(sweep.kv_lens)} needs variant cross (or part core with causal), "
            f"got variants {variants}; add cross or leave kv_lens out"
        )
    if sweep.part == ("core",) and sweep.variants == ("decode",):
        raise InputError(
            "part core has no decode; use part block, or variant causal with mask causal_bottom_right: the same "
            "attention without a cache"
        )
    if set(sweep.q_lens) != {1} and "decode" not in sweep.variants:
        raise InputError(
            f"q_lens {list(sweep.q_lens)} needs variant decode, got variants {variants}; add decode or leave q_lens out"
        )
    if "block" not in sweep.part and (sweep.value_map != "joint" or (sweep.bias and sweep.preset is None)):
        asked = "bias" if sweep.bias else f"value_map {sweep.value_map}"
        raise InputError(f"part core has no projections, so no {asked}; add part block or leave it out")
    if sweep.measure_frontier and sweep.memory_budget_bytes is None:
        raise InputError("measure_frontier needs a memory budget to find the longest T in; give --memory-budget 8GiB")
    if sweep.baseline_precision is not None and sweep.baseline_precision not in sweep.dtypes:
        raise InputError(
            f"the baseline in {sweep.baseline_precision} needs that dtype, got dtypes {', '.join(sweep.dtypes)}; add it"
        )
    _check_masks(sweep)


def _check_masks(sweep: "Sweep") -> None:
    """Every mask fits a variant of the sweep, and every variant has one.

    Raises:
        InputError: one does not.
    """
    fitting = {variant: masks_of(sweep, variant) for variant in sweep.variants}
    rule = (
        "variant causal takes causal and sliding-window rules, decode causal_bottom_right, self and cross what has no "
        "rule"
    )
    for mask in sweep.masks:
        parse_mask(mask)
        if not any(mask in found for found in fitting.values()):
            raise InputError(
                f"mask {mask!r} fits none of the variants {', '.join(sweep.variants)}: {rule}; add the variant or "
                "leave the mask out"
            )
    for variant, found in fitting.items():
        if not found:
            raise InputError(
                f"variant {variant} has none of the masks {', '.join(sweep.masks)}: {rule}; add such a mask "
                f"or leave variant {variant} out"
            )


def masks_of(sweep: "Sweep", variant: str) -> Sequence[str]:
    """The masks of the sweep that fit a variant; the variant's own where none is named."""
    if not sweep.masks:
        return ("",)
    if variant == "decode":
        return [mask for mask in sweep.masks if parse_mask(mask).position == "causal_bottom_right"]
    return [mask for mask in sweep.masks if bool(parse_mask(mask).position) == (variant == "causal")]


def _takes_kv_lens(sweep: "Sweep") -> bool:
    return "cross" in sweep.variants or ("core" in sweep.part and "causal" in sweep.variants)
