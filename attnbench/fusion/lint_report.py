"""What the linter found: per attention and for the whole model, as JSON and in sentences."""

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.errors import printable
from attnbench.fusion.lint_verdicts import Verdict
from attnbench.report.text import fmt_bytes

FAILED, NOTHING_JUDGED = 1, 3
_SAID = {"fused": "fused", "unfused": "not fused", "refused": "refused",
         "unknown": "cannot be told from planned memory"}  # fmt: skip
_WORDS_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """One change that is needed for a region to be fused."""

    words: str  # without `Tanh` (softcap)
    node: str  # in the model; empty: none of its own


@dataclass(frozen=True, kw_only=True)
class RegionVerdict:
    """One attention on one architecture."""

    layer: int  # from 0, in the order of the file
    node: str
    operator: str  # Softmax, Attention, com.microsoft::MultiHeadAttention
    arch: str
    verdict: Verdict
    planned_activation_bytes: tuple[int | None, ...]  # of the region alone, at T and 2T
    culprits: tuple[Culprit, ...] = ()  # each is enough, or all together
    is_together: bool = False  # are all culprits needed?
    changes_tried: int = 0
    words: str = ""  # of the compiler

    def sentence(self) -> str:
        """`not fused; without `Tanh` (softcap) it is`."""
        said = _SAID[self.verdict]
        if self.culprits:
            changes = (" and " if self.is_together else ", or ").join(culprit.words for culprit in self.culprits)
            said += f"; {changes} it is{' fused' if self.verdict == 'refused' else ''}"
            said += " (no one of them is enough)" if self.is_together else ""
        elif self.verdict == "unfused":
            tried = f"({self.changes_tried} tried)" if self.changes_tried else "(there is nothing in it)"
            said += f"; nothing that can be left out makes it fused {tried}"
        if self.words:
            said += "; a build that keeps the operator whole is refused" if self.verdict == "unfused" else ""
            said += f": {' '.join(self.words.split())[:_WORDS_CHARS]}"
        return printable(said)


@dataclass(frozen=True, kw_only=True)
class WholeVerdict:
    """The whole model on one architecture."""

    arch: str
    verdict: Verdict
    planned_activation_bytes: tuple[int | None, ...]
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """What was found in a model."""

    path: str
    sha256: str
    compiler: str  # tensorrt-rtx 1.7.1.116
    archs: tuple[str, ...]
    sizes: str  # batch=1, seq=T
    seq_lens: tuple[int, ...]  # T and 2T; empty: no size follows T
    regions: tuple[RegionVerdict, ...]
    whole: tuple[WholeVerdict, ...]
    notes: tuple[str, ...] = ()

    def exit_code(self, fail_on: str | None = None) -> int:
        """0; 1 where `fail_on` is `unfused` and an attention is not fused; 3 where no attention could be judged."""
        if all(region.verdict == "unknown" for region in self.regions):
            return NOTHING_JUDGED
        is_bad = any(region.verdict in ("unfused", "refused") for region in self.regions)
        return FAILED if fail_on == "unfused" and is_bad else 0

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return asdict(self) | {"sentences": [region.sentence() for region in self.regions]}

    def text(self, width: int | None = None) -> str:
        """Lines for people, equal neighbours and architectures told once; `width`: of the terminal, None: any."""
        at = f" at T = {' and '.join(map(str, self.seq_lens))}" if self.seq_lens else ""
        lines = [f"{printable(self.path)} by {self.compiler}: {printable(self.sizes)}; planned device memory{at}"]
        told = {arch: self._lines(arch) for arch in self.archs}
        for body in dict.fromkeys(map(tuple, told.values())):
            lines += [f"{', '.join(arch for arch in self.archs if tuple(told[arch]) == body)}:"]
            lines += [f"  {line}" for line in body]
        lines += [printable(note) for note in self.notes]
        return "\n".join(lines if width is None else [part for line in lines for part in _wrapped(line, width)])

    def _lines(self, arch: str) -> list[str]:
        regions = [region for region in self.regions if region.arch == arch]
        found = []
        for _, group in itertools.groupby(regions, key=lambda r: (r.sentence(), _memory(r.planned_activation_bytes))):
            same = list(group)
            name = f"layer {same[0].layer}" if len(same) == 1 else f"layers {same[0].layer}-{same[-1].layer}"
            nodes = " .. ".join(dict.fromkeys((same[0].node, same[-1].node)))
            found.append(
                f"{name} ({printable(nodes)}): {same[0].sentence()}{_memory(same[0].planned_activation_bytes)}"
            )
        if not regions:
            return ["no attention found"]
        whole = next((w for w in self.whole if w.arch == arch), None)
        if whole is not None:
            words = f": {printable(' '.join(whole.words.split()))[:_WORDS_CHARS]}" if whole.words else ""
            found.append(f"whole model: {_SAID[whole.verdict]}{words}{_memory(whole.planned_activation_bytes)}")
        return found


def _memory(planned: Sequence[int | None]) -> str:
    known = [size for size in planned if size is not None]
    return f" [{' -> '.join(map(fmt_bytes, known))}]" if known and len(known) == len(planned) else ""


def _wrapped(line: str, width: int) -> list[str]:
    indent = "  " if line.startswith("  ") else ""
    return textwrap.wrap(
        line, width, initial_indent="", subsequent_indent=f"{indent}    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
