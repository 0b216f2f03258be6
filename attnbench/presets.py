"""Shapes of attention in published models, by name. Shapes only: the weights are random, as everywhere here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.errors import InputError
from attnbench.masks import parse_mask
from attnbench.problem import Problem, Variant


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The attention of one model. Every model here has embed_dim = num_heads x head_dim."""

    name: str
    model: str
    embed_dim: int  # as the source has it
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: int
    length: int  # the model's own; a sweep keeps its lengths
    variants: tuple[Variant, ...]
    masks: tuple[str, ...] = ()  # none: what the variants mean
    bias: bool = False
    scale: float | None = None  # None: 1/sqrt(head_dim)
    source: str
    note: str

    def sweep_keys(self) -> dict[str, Any]:
        """What it sets of a sweep; flags and keys of the sweep's own override it."""
        return {
            "part": ("block",), "variants": self.variants, "num_heads": (self.num_heads,),
            "num_kv_heads": (self.num_kv_heads,), "head_dims": (self.head_dim,), "masks": self.masks,
            "bias": self.bias, "scale": self.scale,
        }  # fmt: skip

    def problem_keys(self, variant: str | None = None, part: str | None = None) -> dict[str, Any]:
        """What it sets of a problem, with the mask that fits the variant (None: its first); a core has no bias."""
        variant = variant or self.variants[0]
        has_rule = variant in ("causal", "decode")
        masks = [mask for mask in self.masks if bool(parse_mask(mask).position) == has_rule]
        return {
            "variant": variant, "num_heads": self.num_heads, "head_dim": self.head_dim,
            "num_kv_heads": self.num_kv_heads, "mask": masks[0] if masks else "",
            "bias": self.bias and part != "core", "scale": self.scale,
        }  # fmt: skip


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="gpt3", model="GPT-3 175B", embed_dim=12288, num_heads=96, num_kv_heads=96, head_dim=128, layers=96,
            length=2048, variants=("causal",), bias=True,
            source="arXiv:2005.14165, table 2.1",
            note="every other layer of the model looks at a band of keys only; here all of them",
        ),
        Preset(
            name="llama3-8b", model="Llama 3 8B", embed_dim=4096, num_heads=32, num_kv_heads=8, head_dim=128, layers=32,
            length=8192, variants=("causal",),
            source="https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json; arXiv:2407.21783",
            note="without the rotary positions; --variants decode is a step with its cache",
        ),
        Preset(
            name="whisper-base", model="Whisper base", embed_dim=512, num_heads=8, num_kv_heads=8, head_dim=64,
            layers=6, length=1500, variants=("self", "cross", "causal"), bias=True,
            source="https://huggingface.co/openai/whisper-base/blob/main/config.json; arXiv:2212.04356",
            note="the model has no bias on k, which alters no output: softmax cancels it",
        ),
        Preset(
            name="vit-b16", model="ViT-B/16", embed_dim=768, num_heads=12, num_kv_heads=12, head_dim=64, layers=12,
            length=197, variants=("self",), bias=True,
            source="https://huggingface.co/google/vit-base-patch16-224/blob/main/config.json; arXiv:2010.11929",
            note="224 x 224 pixels in patches of 16 x 16, and one class token",
        ),
        Preset(
            name="t5-base", model="T5 base", embed_dim=768, num_heads=12, num_kv_heads=12, head_dim=64, layers=12,
            length=512, variants=("self", "causal"), masks=("bias_1hqk", "causal_top_left+bias_1hqk"), scale=1.0,
            source="https://huggingface.co/google-t5/t5-base/blob/main/config.json; arXiv:1910.10683",
            note="scores are not scaled; its relative bias is an input, added to them",
        ),
    )
}  # fmt: skip


def find(name: str) -> Preset:
    """The preset of a name.

    Raises:
        InputError: an unknown one; the message has all of them and the nearest.
    """
    if name not in PRESETS:
        import difflib

        close = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "; see attnbench explain presets"
        raise InputError(f"no preset {name!r}; known: {', '.join(PRESETS)}{hint}")
    return PRESETS[name]


def make_problem(preset: str | None, given: Mapping[str, Any]) -> Problem:
    """The problem of a preset (None: block self with 8 heads of 64 in fp32), with what was given in place of its own.

    Raises:
        InputError: an unknown preset, or a problem that cannot be.
    """
    keys = {} if preset is None else find(preset).problem_keys(given.get("variant"), given.get("part"))
    return Problem.make(seq_len=64, **keys | {name: value for name, value in given.items() if value is not None})
