"""`attnbench fusion --onnx`: is attention fused in a model from elsewhere, and if not, what keeps it from being?"""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench import trt_compiler
from attnbench.deploy.foreign import load_foreign
from attnbench.deploy.rtx import require_builder
from attnbench.deploy.shop import Shop, open_shop
from attnbench.errors import UntrustedModelError, WorkerError
from attnbench.fusion.lint_report import Culprit, LintReport, RegionVerdict, WholeVerdict
from attnbench.fusion.lint_sizes import LintSizes, sizes_of
from attnbench.fusion.lint_verdicts import verdict
from attnbench.fusion.stretch import STRETCHED
from attnbench.untrusted import ModelFacts

DEFAULT_SEQ_LEN = 2048  # one matrix of scores is then well above all else
WORKERS = 2
_TASKS = "attnbench.fusion.lint_tasks"
_PRELOAD = ("onnx", trt_compiler.RTX, _TASKS)

Say = Callable[[str], object]


def lint(
    path: Path,
    sizes: Mapping[str, int] | None = None,
    *,
    bind: Mapping[str, str] | None = None,
    seq_len: int = DEFAULT_SEQ_LEN,
    archs: Sequence[str] = (trt_compiler.DEFAULT_ARCH,),
    memory_limit_bytes: int | None = None,
    say: Say = lambda text: None,
) -> LintReport:
    """Judge every attention of an ONNX file, and the whole of it, by what TensorRT-RTX plans; no GPU is needed.

    Args:
        path: the .onnx; it is copied and inspected first, and only workers open the copy.
        sizes: free dim -> its size; those neither here nor in `bind` are 1 where they are a batch, else they follow T.
        bind: free dim -> T, T/2, T+1 and the like.
        seq_len: T; memory is compared with that at 2T.
        archs: of `trt_compiler.ARCHS`.
        memory_limit_bytes: of each worker.
        say: told what is being done.

    Raises:
        InputError: sizes that the model cannot have.
        UnavailableError: tensorrt-rtx is not installed.
        UntrustedModelError: the file is refused before anything loads it.
        WorkerError: cutting the model ran out of memory or time, or crashed.
    """
    require_builder()
    with tempfile.TemporaryDirectory(prefix="attnbench-fusion-") as folder, open_shop(memory_limit_bytes) as shop:
        shop.warm_up(_PRELOAD)
        copy, facts = _staged(shop, path, Path(folder) / "model")
        at = sizes_of(facts, path.name, sizes or {}, bind or {}, seq_len)
        return _Linter(shop, copy, at, say).run(path, facts, archs, Path(folder))


def _staged(shop: Shop, path: Path, into: Path) -> tuple[Path, ModelFacts]:
    try:
        return load_foreign(shop, path, into)
    except UntrustedModelError as err:  # it names the copy, which is gone by the time that this is read
        raise UntrustedModelError(str(err).replace(str(into / path.name), str(path))) from err


@dataclass(frozen=True)
class _Linter:
    """One model, its copy and its sizes."""

    shop: Shop
    copy: Path
    at: LintSizes
    say: Say

    def run(self, path: Path, facts: ModelFacts, archs: Sequence[str], folder: Path) -> LintReport:
        pool = ThreadPoolExecutor(WORKERS)
        try:
            wholes = {
                arch: [pool.submit(self._whole, shapes, arch) for shapes in self.at.shapes] for arch in archs
            }  # fmt: skip
            found = self.shop.ask(
                f"{_TASKS}:cut_file", preload=_PRELOAD, path=str(self.copy), sizes=self.at.sizes, folder=str(folder)
            )
            search = _Search(self.shop, pool)
            regions = self._judged(search, found["regions"], archs)
            whole = [
                _whole_verdict(arch, [job.result() for job in jobs], found["regions"]) for arch, jobs in wholes.items()
            ]
        finally:
            pool.shutdown(cancel_futures=True)  # interrupted: what has not begun never does
        versions = [answer["version"] for answer in search.answers if answer["version"]]
        return LintReport(
            path=str(path), sha256=facts.sha256, archs=tuple(archs), sizes=self.at.words, seq_lens=self.at.seq_lens,
            compiler=f"{trt_compiler.PACKAGES[trt_compiler.RTX]} {versions[0] if versions else whole[0][1]}",
            regions=tuple(regions), whole=tuple(made for made, _ in whole),
            notes=(*self.at.notes, *_notes(regions, [made for made, _ in whole], found)),
        )  # fmt: skip

    def _judged(
        self, search: "_Search", told: Sequence[Mapping[str, Any]], archs: Sequence[str]
    ) -> list[RegionVerdict]:
        """Every region; equal ones are compiled once."""
        different = {(tuple(region["files"]), arch): region for region in told for arch in archs}
        self.say(f"{len(told)} attention regions, {len(different) // len(archs)} different; {', '.join(archs)}")
        judged = {key: search.judge(region, key[1]) for key, region in different.items()}
        return [_verdict_of(region, arch, judged[tuple(region["files"]), arch]) for arch in archs for region in told]

    def _whole(self, shapes: Mapping[str, Sequence[int]], arch: str) -> dict[str, Any]:
        return _ask(self.shop, "compile_whole", path=str(self.copy), shapes=shapes, arch=arch)


def _ask(shop: Shop, task: str, **fields: Any) -> dict[str, Any]:
    """The compiler's answer; that it crashed or ran out of memory is one too."""
    try:
        return shop.ask(f"{_TASKS}:{task}", preload=_PRELOAD, **fields)
    except WorkerError as err:
        ended = str(err).replace(f" during {f'{_TASKS}:{task}'!r}", "")
        return {"planned": [None], "stage": "worker", "words": f"the compiler ended: {ended}", "version": ""}


@dataclass(frozen=True)
class _Judged:
    """A region and what was tried on it."""

    answer: Mapping[str, Any]
    verdict: str
    keys: tuple[str, ...] = ()
    is_together: bool = False
    tried: int = 0


class _Search:
    """Judges regions; where one is not fused, leaves out one thing at a time, then as few as it takes."""

    def __init__(self, shop: Shop, pool: ThreadPoolExecutor) -> None:
        self._shop, self._pool = shop, pool
        self.answers: list[dict[str, Any]] = []

    def judge(self, region: Mapping[str, Any], arch: str) -> _Judged:
        if not region["files"]:
            words = "its sizes do not follow from those of the inputs"
            return _Judged({"planned": [], "words": words}, "unknown")
        answer, said = self._compile(region, arch, ())
        keys = tuple(change["key"] for change in region["changes"])
        if said not in ("unfused", "refused") or not keys:
            return _Judged(answer, said)
        singles = list(self._pool.map(lambda key: self._is_fused(region, arch, (key,)), keys))
        enough = tuple(key for key, is_fused in zip(keys, singles, strict=True) if is_fused)
        if enough or len(keys) == 1 or not self._is_fused(region, arch, keys):
            return _Judged(answer, said, enough, False, len(keys))
        return _Judged(answer, said, self._fewest(region, arch, keys), True, len(keys))

    def _fewest(self, region: Mapping[str, Any], arch: str, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Of changes that are enough together, those that cannot be spared."""
        for key in keys:
            fewer = tuple(other for other in keys if other != key)
            if self._is_fused(region, arch, fewer):
                keys = fewer
        return keys

    def _is_fused(self, region: Mapping[str, Any], arch: str, keys: tuple[str, ...]) -> bool:
        return self._compile(region, arch, keys)[1] == "fused"

    def _compile(self, region: Mapping[str, Any], arch: str, keys: tuple[str, ...]) -> tuple[dict[str, Any], str]:
        fields = {"files": region["files"], "changes": keys, "arch": arch, "is_operator": region["is_operator"]}
        answer = _ask(self._shop, "compile_region", **fields)
        self.answers.append(answer)
        said = verdict(answer["planned"], region["scores"], region["passed"])
        if said == "fused" and answer["words"]:  # only by taking the operator apart
            said = "unfused"
        return answer, said


def _verdict_of(region: Mapping[str, Any], arch: str, judged: _Judged) -> RegionVerdict:
    words = {change["key"]: Culprit(words=change["words"], node=change["node"]) for change in region["changes"]}
    return RegionVerdict(
        layer=region["number"], node=region["node"], operator=region["operator"], arch=arch,
        verdict=judged.verdict,  # type: ignore[arg-type]
        planned_activation_bytes=tuple(judged.answer["planned"]), culprits=tuple(words[key] for key in judged.keys),
        is_together=judged.is_together, changes_tried=judged.tried,
        words=_with_names(judged.answer["words"], region["names"]),
    )  # fmt: skip


def _with_names(words: str, names: Sequence[str]) -> str:
    """The compiler's words with the model's names of nodes for those of the cut, `'n0'` and so on."""
    return re.sub(
        r"'n(\d+)'", lambda found: repr(names[int(found[1])]) if int(found[1]) < len(names) else found[0], words
    )


def _whole_verdict(
    arch: str, answers: Sequence[Mapping[str, Any]], regions: Sequence[Mapping[str, Any]]
) -> tuple[WholeVerdict, str]:
    """The verdict, and the version of the compiler."""
    planned = [size for answer in answers for size in answer["planned"]]
    scores = [
        max((region["own_scores"][place] or 0 for region in regions if region["own_scores"]), default=0) or None
        for place in range(len(answers))
    ]
    words = next((answer["words"] for answer in answers if answer["words"]), "")
    passed = [size or 0 for size in scores]  # unknown: of the growth of a whole model only its square tells
    said = verdict(planned, scores, passed)
    made = WholeVerdict(arch=arch, verdict=said, planned_activation_bytes=tuple(planned), words=words)
    return made, answers[0]["version"]


def _notes(
    regions: Sequence[RegionVerdict], wholes: Sequence[WholeVerdict], told: Mapping[str, Any]
) -> list[str]:  # fmt: skip
    """Where the two witnesses disagree, and what was not looked at."""
    found = []
    for whole in wholes:
        of_arch = [region for region in regions if region.arch == whole.arch]
        bad = [region.layer for region in of_arch if region.verdict == "unfused"]
        if whole.verdict == "unfused" and all(region.verdict == "fused" for region in of_arch):
            found.append(
                f"disagreement on {whole.arch}: every attention is fused by itself, but the whole model plans memory "
                "that grows with the square of T; look for masks or scores that it makes elsewhere"
            )
        if whole.verdict == "fused" and bad:
            found.append(
                f"disagreement on {whole.arch}: not fused by itself: layer {', '.join(map(str, bad))}; but the whole "
                "model plans memory that grows in proportion to T"
            )
    stretched = sum(region["is_stretched"] for region in told["regions"])
    if stretched:
        lengths = " and ".join(map(str, STRETCHED))
        found.append(
            f"of fixed sizes too small to tell: {stretched} attention regions, judged at T = {lengths} instead"
        )
    if told["branches"]:
        found.append(f"both branches of {told['branches']} If were looked at, each as if it were taken")
    if told["inner"]:
        found.append(f"not looked at: {told['inner']} softmax or Attention nodes inside Loop or Scan")
    return found
