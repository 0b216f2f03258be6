"""What is asked: one attention graph each, without lengths and without an architecture."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from attnbench.errors import InputError
from attnbench.masks import parse_mask
from attnbench.problem import Problem

DTYPES = ("fp32", "fp16", "bf16", "fp8")
NUM_HEADS = 8
KV_HEADS = {"mha": 8, "gqa": 2, "mqa": 1}  # heads of keys and values beside 8 of queries
EXPORTED = ("onnx-decomposed", "onnx-attention", "onnx-contrib", "onnx-blocked")  # recipes of our exporters
FP8 = ("fp8-qkpv", "fp8-qk")  # graphs of fusion.fp8_graph: which operands of the two products are quantised
USUAL_RECIPES = EXPORTED[:2]
MASKS = ("none", "key_padding", "bool_b1qk", "bias_1hqk", "sliding_window_128")
HEAD_DIMS = (8, 16, 32, 64, 80, 96, 128, 256, 320, 512)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Part core: y = softmax(q k^T * scale + mask) v with 8 heads of queries.

    Raises:
        InputError: an unknown word, or a combination that no recipe can write.
    """

    dtype: str = "fp16"
    recipe: str = "onnx-decomposed"
    head_dim: int = 64
    mask: str = "none"  # a name of masks.parse_mask without causal_top_left
    causal: bool = False  # causal_top_left
    heads: str = "mha"  # of KV_HEADS

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        for name, value, known in (
            ("dtype", self.dtype, DTYPES), ("recipe", self.recipe, EXPORTED + FP8), ("heads", self.heads, KV_HEADS),
        ):  # fmt: skip
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}; got {value!r}")
        if (self.dtype == "fp8") != (self.recipe in FP8):
            raise InputError(
                f"recipe {self.recipe} is not of {self.dtype}: fp8 has {' and '.join(FP8)}, the other dtypes "
                f"{', '.join(EXPORTED)}"
            )
        if self.dtype == "fp8" and (self.mask != "none" or self.causal or self.heads != "mha"):
            raise InputError("the graphs for fp8 have no mask and as many heads of keys as of queries; leave them out")
        self.problem(1)

    def problem(self, seq_len: int) -> Problem:
        """The problem at T = seq_len; fp8 quantises inputs of fp16.

        Raises:
            ProblemError: there is none.
        """
        mask = self.mask
        if self.causal:
            mask = "causal_top_left" if mask == "none" else f"causal_top_left+{mask}"
        return Problem.make(
            part="core", variant="causal" if parse_mask(mask).position else "self", seq_len=seq_len, mask=mask,
            num_heads=NUM_HEADS, num_kv_heads=KV_HEADS[self.heads], head_dim=self.head_dim,
            dtype="fp16" if self.dtype == "fp8" else self.dtype,  # type: ignore[arg-type]  # checked above
        )  # fmt: skip

    @property
    def row(self) -> str:
        """All but dtype and recipe in words: `head_dim 80, causal, GQA`."""
        words = [f"head_dim {self.head_dim}"]
        words += ["causal"] if self.causal else []
        words += [] if self.mask == "none" else [self.mask]
        words += [] if self.heads == "mha" else [self.heads.upper()]
        return ", ".join(words)

    @property
    def column(self) -> tuple[str, str]:
        """Dtype and recipe."""
        return self.dtype, self.recipe

    @property
    def label(self) -> str:
        """All of it in words."""
        return f"{self.dtype}, {self.row}, {self.recipe}"

    def as_dict(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def default_questions() -> list[Question]:
    """What most people ask: from head_dim 64 without a mask, one thing is changed at a time."""
    base = Question()
    rows = [base, replace(base, causal=True)]
    rows += [replace(base, head_dim=head_dim) for head_dim in (8, 16, 80, 128, 256, 320)]
    rows += [replace(base, mask=mask) for mask in MASKS if mask != "none"]
    rows += [replace(base, mask="key_padding", causal=True)]
    rows += [replace(base, heads="gqa"), replace(base, heads="mqa"), replace(base, heads="gqa", causal=True)]
    found = [
        replace(row, dtype=dtype, recipe=recipe)
        for row in rows for dtype in ("fp32", "fp16", "bf16") for recipe in USUAL_RECIPES
    ]  # fmt: skip
    return [*found, *_fp8((64, 128))]


def full_questions() -> list[Question]:
    """Everything with everything; sliding_window_128 has its causal rule in itself."""
    found = [
        Question(dtype=dtype, recipe=recipe, head_dim=head_dim, mask=mask, causal=causal, heads=heads)
        for head_dim, mask, causal, heads, dtype, recipe in product(
            HEAD_DIMS, MASKS, (False, True), KV_HEADS, ("fp32", "fp16", "bf16"), EXPORTED
        )
        if not (causal and parse_mask(mask).position)
    ]
    return [*found, *_fp8(HEAD_DIMS)]


def _fp8(head_dims: Iterable[int]) -> list[Question]:
    return [Question(dtype="fp8", recipe=recipe, head_dim=head_dim) for head_dim in head_dims for recipe in FP8]


_HOW = "such as fp16,head_dim=80,causal; words: dtypes, recipes, masks, causal, mha, gqa, mqa, head_dim=N"


def parse_ask(text: str) -> list[Question]:
    """The questions of `fp16,head_dim=80,causal`: one for each usual recipe unless one is named.

    Raises:
        InputError: a word that is not known, or one kind given twice.
    """
    given: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, value = _field(word)
        if name in given:
            raise InputError(f"--ask {text!r} has two words for {name}; ask once for each")
        given[name] = value
    if not given:
        raise InputError(f"--ask {text!r} asks nothing; {_HOW}")
    dtype = given.get("dtype", "fp8" if given.get("recipe") in FP8 else "fp16")
    recipes: Sequence[str] = (given["recipe"],) if "recipe" in given else FP8 if dtype == "fp8" else USUAL_RECIPES
    return [Question(**{**given, "dtype": dtype, "recipe": recipe}) for recipe in recipes]


def _field(word: str) -> tuple[str, Any]:
    """The field of a question that a word is about, and its value."""
    name, equals, value = word.partition("=")
    if equals and name == "head_dim":
        if not value.isdecimal() or not 1 <= int(value) <= 4096:
            raise InputError(f"head_dim must be a whole number from 1 to 4096, got {value!r}; such as head_dim=80")
        return name, int(value)
    if equals:
        raise InputError(f"--ask knows no {word!r}; {_HOW}")
    if word in ("causal", "causal_top_left"):
        return "causal", True
    for field, known in (("dtype", DTYPES), ("recipe", EXPORTED + FP8), ("heads", KV_HEADS)):
        if word in known:
            return field, word
    try:
        parse_mask(word)
    except InputError as err:
        raise InputError(f"--ask knows no {word!r}; {_HOW}") from err
    return "mask", word
