"""What a bundle of the built-in attention is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench import plugins
from attnbench.deploy import golden, models, rtx
from attnbench.deploy.manifest import Check, Golden, Tensor
from attnbench.deploy.shop import WITH_EXPORTERS, Shop
from attnbench.deploy.targets import Target
from attnbench.errors import ArtifactError, AttnbenchError, InputError, UnavailableError
from attnbench.problem import CACHE_ROOM, MASK_NAME, OUTPUT_NAME, Problem
from attnbench.sweep.bench import with_fix

_MEANS = {
    "x": "tokens, one vector of size E each", "query": "tokens that ask, one vector of size E each",
    "context": "tokens that keys and values come from, one vector of size E each",
    "q": "queries by head", "k": "keys by head", "v": "values by head",
    "past_key": "keys of the tokens before, by head", "past_value": "values of the tokens before, by head",
    OUTPUT_NAME: "the attention's output, one row per query",
    "present_key": "past_key with the keys of the new tokens behind; the past_key of the next step",
    "present_value": "past_value with the values of the new tokens behind; the past_value of the next step",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AttentionSource:
    """One problem; see `attnbench.deploy.write.Source`."""

    problem: Problem
    seed: int
    opset: int | None = None  # None: the exporter's first
    max_len: int = 512  # the largest T that is proved
    gpu_archs: tuple[str, ...] = rtx.DEFAULT_ARCHS  # of engines
    external_bytes: int = models.EXTERNAL_BYTES
    module: None = None

    def refuse(self) -> None:
        """Find what is wrong before anything is made.

        Raises:
            InputError: a max_len that does not fit.
        """
        golden.sizes_of(self.problem, self.max_len)

    def tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs."""
        p, kinds = self.problem, self.problem.input_kinds()
        inputs = (self._tensor(name, kinds[name], dims) for name, dims in p.input_dims().items())
        return tuple(inputs), tuple(self._tensor(name, p.dtype, dims) for name, dims in p.output_dims().items())

    def _tensor(self, name: str, dtype: Any, dims: tuple[str | int, ...]) -> Tensor:
        means = mask_means(self.problem) if name == MASK_NAME else _MEANS[name]
        return Tensor(name=name, dtype=dtype, dims=dims, means=means)

    def write_golden(self, shop: Shop, folder: Path) -> tuple[Golden, ...]:
        """The cases in golden/."""
        made = shop.ask(
            "attnbench.deploy.golden:write_cases", preload=WITH_EXPORTERS, folder=str(folder),
            problem=self.problem.as_dict(), seed=self.seed, max_len=self.max_len,
        )  # fmt: skip
        return tuple(Golden(**case) for case in made["golden"])

    def write_model(self, shop: Shop, target: Target, exporter: str, folder: Path) -> tuple[str, int | None]:
        """Write the model file into the folder; its name and its opset.

        Raises:
            AttnbenchError: unavailable, unsupported, or the named error of the export.
        """
        if target.kind == "pt2":
            fields: dict[str, Any] = {"problem": self.problem.as_dict(), "seed": self.seed, "folder": str(folder)}
            return shop.ask("attnbench.deploy.models:write_pt2", preload=WITH_EXPORTERS, **fields)["model"], None
        if target.kind == "engine":
            rtx.require_builder()
        source, opset, preload = self._export(shop, exporter, folder)
        if target.kind == "engine":
            profile = rtx.profile_of(self.problem, self.max_len)
            fields = {"source": str(source), "folder": str(folder), "archs": self.gpu_archs, "profile": profile}
            return shop.ask("attnbench.deploy.rtx:build_engines", preload=(rtx.MODULE,), **fields)["model"], opset
        if target.kind == "openvino-ir":
            fields = {"source": str(source), "folder": str(folder)}
            return shop.ask("attnbench.deploy.models:write_ir", preload=("openvino",), **fields)["model"], opset
        fields = {"source": str(source), "folder": str(folder), "external_bytes": self.external_bytes}
        return shop.ask("attnbench.deploy.models:settle_onnx", preload=preload, **fields)["model"], opset

    def _export(self, shop: Shop, exporter: str, folder: Path) -> tuple[Path, int, tuple[str, ...]]:
        """The exporter's own file, beside the folder."""
        probe = plugins.probe_all("exporter", [exporter])[exporter]
        if not probe.available:
            raise UnavailableError(f"{exporter} cannot work here: {with_fix(probe)}")
        offered = tuple(probe.traits["opsets"])
        opset = offered[0] if self.opset is None else self.opset
        if opset not in offered:
            raise InputError(f"{exporter} writes opset {', '.join(map(str, offered))}, got {opset}; name one of them")
        builtin = plugins.find("exporter", exporter).builtin
        preload = tuple(probe.traits.get("preload", ())) if builtin else ()
        place = folder.parent / f"export-{exporter}"
        place.mkdir()
        path = place / "made.onnx"
        fields = {"problem": self._example().as_dict(), "opset": opset, "path": str(path), "seed": self.seed}
        shop.ask("export", preload=preload, exporter=exporter, **fields)
        return path, opset, preload

    def _example(self) -> Problem:
        """Sizes that an exporter is shown: what it does not support at unequal lengths, a file must not claim."""
        p = self.problem
        if p.variant == "decode":
            return p.at(q_len=2, kv_len=8, batch_size=2)
        return p.at(q_len=8, kv_len=6 if golden.has_two_lengths(p) else 8, batch_size=2)

    def check(self, shop: Shop, plan: Mapping[str, Any], opset: int | None, folder: Path) -> tuple[Check, ...]:
        """Sizes that the example did not show, constants of its length, dtypes, weights.

        Raises:
            AttnbenchError: the named error of the check that failed.
        """
        sizes = [size for case in plan["golden"] for name, size in case["sizes"].items() if name != "batch_size"]
        found = shop.ask(
            "attnbench.deploy.checks_attention:check_attention", preload=(plan["runtime"]["module"],),
            folder=str(folder), plan=plan, problem=golden.traced_problem(self.problem).as_dict(), seed=self.seed,
            max_len=max(sizes), opset=opset,
        )  # fmt: skip
        return tuple(Check(**check) for check in found["checks"])

    def wrong(self, sentence: str, faults: Sequence[str]) -> AttnbenchError:
        """It computes something else than the reference."""
        return ArtifactError(sentence)

    def sentence(self) -> str:
        """What the model computes."""
        p, rule = self.problem, _RULES.get(self.problem.masking.position, "")
        kind = "multi-head attention with its projections" if p.part == "block" else "the core of attention"
        heads = f"{p.num_heads} heads of {p.head_dim}"
        heads += "" if p.num_kv_heads == p.num_heads else f", {p.num_kv_heads} of keys and values"
        sizes = f"{heads}, E = {p.embed_dim}, {p.dtype}" if p.part == "block" else f"{heads}, {p.dtype}"
        window = f" (N = {p.masking.window})" if p.masking.window else ""
        return f"{kind[0].upper()}{kind[1:]}, variant {p.variant}: {sizes}, scale {p.scale:.6g}. {rule}{window}".strip()

    def notes(self) -> list[str]:
        """What a user of the file has to know beside its inputs."""
        found = ["A query that may see no key gives " + ("zero" if self.problem.part == "core" else _NO_KEY) + "."]
        found = found if self.problem.masking.may_mask_rows else []
        if self.problem.part == "block":
            found.append(f"The weights are attnbench's random ones of seed {self.seed}: this bundle shows and proves "
                         "the form; put your own weights in before you serve it.")  # fmt: skip
        if self.problem.variant == "decode":
            found.append(f"A file may have the optional input `{CACHE_ROOM}`, for runtimes that share one buffer "
                         "between past and present; leave it out otherwise.")  # fmt: skip
        return found


_NO_KEY = "the bias of the output projection, or zero where there is none"
_RULES = {
    "causal_top_left": "Causal, aligned top-left: query i sees keys 0 to i.",
    "causal_bottom_right": "Causal, aligned bottom-right: the last query sees every key, the one before all but one.",
    "sliding_window": "Causal with a window: query i sees the last N of the keys 0 to i",
}


def mask_means(problem: Problem) -> str:
    """What the mask input says."""
    if problem.masking.is_added:
        return "added to the scaled scores before the softmax"
    return "True: the query may attend to the key; False: it may not" + (
        ", beside what the causal rule forbids" if problem.masking.position else ""
    )
