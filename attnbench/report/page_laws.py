"""The laws of a chart's arms as the page shows them: terms with their intervals, and what they mean in words."""

from typing import Any

from attnbench.analysis.arm_laws import ArmLaws, arm_laws
from attnbench.analysis.groups import Panel
from attnbench.analysis.laws import Law, as_dict
from attnbench.report.decisions import latency_words, memory_words

DIGITS = 4  # significant ones


def laws_of(panel: Panel, floor: float | None) -> dict[str, Any]:
    """Arm to its laws of latency (ms) and memory (bytes); null where there is none, and the words say why."""
    return {arm: _entry(laws, panel.x_label) for arm, laws in arm_laws(panel, floor).items()}


def _entry(laws: ArmLaws, x_label: str) -> dict[str, Any]:
    return {
        "latency": _law(laws.latency),
        "latency_words": "; ".join(latency_words(laws, x_label)),
        "memory": _law(laws.memory),
        "memory_words": "; ".join(memory_words(laws)),
        "matrices": None if laws.matrices is None else [_short(v) for v in laws.matrices],
    }


def _law(law: Law | None) -> dict[str, Any] | None:
    if law is None:
        return None
    found = as_dict(law)
    terms = {name: [_short(v) for v in found[name]] for name in ("fixed", "linear", "quadratic")}
    residuals = {x: _short(v) for x, v in found["residuals"].items()}
    return {**found, **terms, "misfit": _short(found["misfit"]), "residuals": residuals}


def _short(value: float) -> float | None:
    """The figure with DIGITS digits; None where JSON has no word for it."""
    short = float(f"{value:.{DIGITS}g}")
    return short if abs(short) < float("inf") else None
