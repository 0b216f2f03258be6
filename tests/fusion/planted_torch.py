"""Models in torch with what was planted in them, and what the linter has to name.

What is due was written down from what TensorRT-RTX plans for the same model with the planted code bypassed by hand:
`test_the_compiler_agrees` asks it again.
"""

from dataclasses import dataclass, replace

import torch

from tests.fusion.torch_models import Model

Due = tuple[str, ...]
FUSED: Due = ()
SOFTCAP: Due = ("without `Tanh` (softcap)",)
RETURNED: Due = ("without the returned weights",)
HEADS: Due = ("with head_dim 128 instead of 320",)
ISLAND: Due = ("without the fp32 island (`MatMul`, `Div`",)
HALF: Due = ("in fp16 instead of fp32",)
GUARD: Due = ("without `Where` (NaN guard)",)
GUARDS: Due = ("without `Where` (NaN and infinity guard of 3)",)
COLUMN: Due = ("without the extra column of scores (`Concat` and `Slice`)",)
MIX: Due = ("without `MatMul` (mixes heads)",)
BY_HAND: Due = ("with one `Softmax` instead of `Exp`, `ReduceSum` and `Div`",)
HEAD_MASK: Due = ("without `Mul`",)
DROPOUT: Due = ("without `Dropout`",)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A model, what is due for every layer, and the model without what was planted (None: nothing was)."""

    model: Model
    due: tuple[Due, ...]
    bypassed: Model | None = None


def planted(model: Model, *due: Due) -> Planted:
    """Bypassed are the changes of the layers for which something is due."""
    layers = tuple("" if culprits else change for change, culprits in zip(model.layers, due, strict=True))
    without = replace(model, layers=layers, is_script=model.opset is None)
    return Planted(model=model, due=due, bypassed=without if any(due) else None)


def script(family: str, *layers: str, **options: object) -> Model:
    """By the older exporter, which is twenty times as fast."""
    return Model(family=family, layers=layers, is_script=True, **options)  # type: ignore[arg-type]


_FP32 = script("bert", "", "", dtype=torch.float32)
_TRAINING = script("none", "", "", is_training=True)

MODELS = {
    # By the exporter of today.
    "several": planted(
        Model(family="llama", layers=("", "softcap", "returned", "nan_to_num")), FUSED, SOFTCAP, RETURNED, GUARDS
    ),
    "opset-23": planted(Model(family="bool", layers=("sdpa", "softcap"), opset=23), FUSED, SOFTCAP),
    # By the older one; nothing planted.
    "llama-rope-gqa": planted(script("llama", "rope", "rope"), FUSED, FUSED),
    "additive-mask-fp32-softmax": planted(script("added", "fp32_softmax", "fp32_softmax"), FUSED, FUSED),
    "boolean-mask-nan-guard": planted(script("bool", "nan_guard", "nan_guard"), FUSED, FUSED),
    "alibi": planted(script("alibi", "", "scaled_query"), FUSED, FUSED),
    "window-clamp": planted(script("window", "", "clamp"), FUSED, FUSED),
    "batch-in-heads": planted(script("added", "bmm", "bmm"), FUSED, FUSED),
    "qk-norm-cosine": planted(script("gpt2", "qk_norm", "cosine"), FUSED, FUSED),
    "transposed-k-prefix": planted(script("none", "k_transposed", "prefix"), FUSED, FUSED),
    # Something planted.
    "averaged-weights": planted(script("bert", "averaged", ""), RETURNED, FUSED),
    "head-dim-320": planted(script("gpt2", "head_dim_320", ""), HEADS, FUSED),
    "bert-upcast-qk": planted(script("bert", "", "upcast_qk"), FUSED, ISLAND),
    "mqa-upcast-qk": planted(script("mqa", "upcast_qk", "rope"), ISLAND, FUSED),
    "nan-guard-of-zeros-like": planted(script("bool", "nan_guard_full", "nan_guard"), GUARD, FUSED),
    "cross-softcap": planted(script("cross", "", "softcap"), FUSED, SOFTCAP),
    "einsum-returned": planted(script("none", "einsum", "returned"), FUSED, RETURNED),
    "attention-sink": planted(script("gpt2", "rope", "sink"), FUSED, COLUMN),
    "talking-heads": planted(script("none", "", "talking_heads"), FUSED, MIX),
    "softmax-by-hand": planted(script("added", "softmax_by_hand", ""), BY_HAND, FUSED),
    "head-mask": planted(script("bert", "head_mask", ""), HEAD_MASK, FUSED),
    "bf16-softcap": planted(script("bert", "softcap", "", dtype=torch.bfloat16), SOFTCAP, FUSED),
    "fp32": Planted(model=_FP32, due=(HALF, HALF), bypassed=replace(_FP32, dtype=torch.float16)),
    "training": Planted(model=_TRAINING, due=(DROPOUT, DROPOUT), bypassed=replace(_TRAINING, is_training=False)),
}  # fmt: skip
