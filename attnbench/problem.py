"""What is computed: one attention problem, its tensors and its cost."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from attnbench.errors import ProblemError
from attnbench.masks import Mask, parse_mask

Part = Literal["block", "core"]
Variant = Literal["self", "cross", "causal", "decode"]
DType = Literal["fp32", "fp16", "bf16"]
ValueMap = Literal["joint", "low_rank"]

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
OUTPUT_NAME = "y"

# A tensor of more than this many bytes is refused before anything is allocated.
MAX_TENSOR_BYTES = 1 << 40

_CHOICES: dict[str, tuple[str, ...]] = {
    "part": get_args(Part),
    "variant": get_args(Variant),
    "dtype": get_args(DType),
    "value_map": get_args(ValueMap),
}
_SIZES = ("batch_size", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "v_head_dim")
MASK_NAME = "mask"
# Of a file for decode: an input with default 0, how many places behind the old tokens the given cache has for new ones.
# Where the file has it, a runtime may give one buffer as past and as present, and nothing old is copied.
CACHE_ROOM = "cache_room"
USUAL_MASK = {"causal": "causal_top_left", "decode": "causal_bottom_right"}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One attention problem; validated on construction.

    Shapes: block `self` and `causal` take x (B, T, E) and give y (B, T, E); block `cross` takes query (B, q_len, E)
    and context (B, kv_len, E); core takes q (B, H, q_len, D), k (B, H_kv, kv_len, D) and v (B, H_kv, kv_len, D_v) and
    gives (B, H, q_len, D_v). A mask that is a tensor is one more input, `mask`, the last. Query head h attends with
    key head h // (H / H_kv).

    Block `decode` is one step with a cache: x (B, q_len, E), past_key (B, H_kv, P, D) and past_value (B, H_kv, P, D_v)
    give y (B, q_len, E) and present_key, present_value with the new keys and values behind the P = kv_len - q_len old
    ones; a new token sees all of the cache and the new tokens up to itself.

    Raises:
        ProblemError: a size below 1, an unknown name, lengths that contradict the variant, an impossible size.
    """

    part: Part = "block"
    variant: Variant = "self"
    batch_size: int = 1
    q_len: int
    kv_len: int
    num_heads: int = 8
    num_kv_heads: int
    head_dim: int = 64
    dtype: DType = "fp32"
    mask: str = ""  # as in masks.parse_mask; empty: causal_top_left for variant causal, else none
    v_head_dim: int = 0  # 0: head_dim
    given_scale: float | None = None  # None: 1/sqrt(head_dim)
    bias: bool = False  # of the four projections
    value_map: ValueMap = "joint"  # low_rank: per head value-down (E -> D_v) and value-up (D_v -> E), summed over heads

    def __post_init__(self) -> None:
        """Fill in defaults, refuse what cannot be computed."""
        if self.mask == "":
            object.__setattr__(self, "mask", USUAL_MASK.get(self.variant, "none"))
        if self.v_head_dim == 0:
            object.__setattr__(self, "v_head_dim", self.head_dim)
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if value not in allowed:
                raise ProblemError(f"{field} must be one of {', '.join(allowed)}; got {value!r}")
        for field in _SIZES:
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise ProblemError(f"{field} must be a whole number of at least 1, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ProblemError(
                f"num_kv_heads must divide num_heads ({self.num_heads}), got {self.num_kv_heads}; "
                f"{math.gcd(self.num_heads, self.num_kv_heads)} does"
            )
        if self.given_scale is not None and not (math.isfinite(self.given_scale) and self.given_scale > 0.0):
            raise ProblemError(f"scale must be a finite number above 0, got {self.given_scale!r}")
        if self.given_scale == 1.0 / math.sqrt(self.head_dim):
            object.__setattr__(self, "given_scale", None)  # one problem, one id
        if self.part == "core" and (self.bias or self.value_map != "joint"):
            raise ProblemError("part core has no projections, so no bias and no value map; use part block")
        if (self.variant in USUAL_MASK) != bool(self.masking.position):
            raise ProblemError(
                f"variant {self.variant} contradicts mask {self.mask!r}: variant causal has a causal or sliding-window "
                "rule, decode causal_bottom_right, self and cross have none"
            )
        if self.variant == "decode":
            self._refuse_impossible_decode()
        if self.q_len != self.kv_len and (self.variant == "self" or (self.part, self.variant) == ("block", "causal")):
            raise ProblemError(
                f"{self.part} {self.variant}: q_len must equal kv_len, got {self.q_len} and {self.kv_len}; "
                "use variant cross for different lengths"
            )
        self._refuse_impossible_size()

    def _refuse_impossible_decode(self) -> None:
        if self.part != "block" or self.masking.position != "causal_bottom_right":
            raise ProblemError(
                f"decode is a block with mask causal_bottom_right, got part {self.part} and mask {self.mask!r}; part "
                "core with variant causal and that mask is the same attention without a cache"
            )
        if self.kv_len < self.q_len:
            raise ProblemError(
                f"decode has its new tokens among its keys: kv_len (cached and new tokens) must be at least q_len, got "
                f"{self.kv_len} and {self.q_len}; use a larger T"
            )

    def _refuse_impossible_size(self) -> None:
        weight = (self.embed_dim, self.num_heads * max(self.head_dim, self.v_head_dim)) if self.part == "block" else ()
        for name, shape in (*self.input_shapes().items(), (OUTPUT_NAME, self.output_shape()), ("a weight", weight)):
            size = DTYPE_BYTES[self.dtype]
            for n in shape:
                size *= n
            if size > MAX_TENSOR_BYTES:
                raise ProblemError(
                    f"{name} of shape {shape} would need {size} bytes ({size / 2**30:.0f} GiB), "
                    f"more than the limit of {MAX_TENSOR_BYTES} bytes per tensor; use a smaller T, batch or head size"
                )

    @classmethod
    def make(
        cls,
        *,
        part: Part = "block",
        variant: Variant = "self",
        seq_len: int,
        kv_len: int | None = None,
        q_len: int = 1,
        batch_size: int = 1,
        num_heads: int = 8,
        head_dim: int = 64,
        dtype: DType = "fp32",
        num_kv_heads: int | None = None,
        mask: str = "",
        v_head_dim: int | None = None,
        scale: float | None = None,
        bias: bool = False,
        value_map: ValueMap = "joint",
    ) -> "Problem":
        """A problem at T = seq_len with the defaults of the design: cross has kv_len = T/2 (at least 1), others T.

        Decode: seq_len is the number of tokens after the step, kv_len of them; `q_len` new ones.
        """
        if variant == "decode":
            seq_len, kv_len = q_len, seq_len
        if kv_len is None:
            kv_len = max(1, seq_len // 2) if variant == "cross" else seq_len
        return cls(
            part=part, variant=variant, batch_size=batch_size, q_len=seq_len, kv_len=kv_len,
            num_heads=num_heads, num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads, head_dim=head_dim,
            dtype=dtype, mask=mask, v_head_dim=v_head_dim or head_dim, given_scale=scale, bias=bias,
            value_map=value_map,
        )  # fmt: skip

    def at(self, *, q_len: int, kv_len: int | None = None, batch_size: int | None = None) -> "Problem":
        """The same problem at other sizes; kv_len follows q_len unless variant is cross; decode keeps the cache."""
        if kv_len is None and self.variant == "decode":
            kv_len = q_len + self.kv_len - self.q_len
        if kv_len is None:
            kv_len = max(1, q_len // 2) if self.variant == "cross" else q_len
        return replace(self, q_len=q_len, kv_len=kv_len, batch_size=batch_size or self.batch_size)

    @property
    def masking(self) -> Mask:
        """The mask, parsed."""
        return parse_mask(self.mask)

    @property
    def embed_dim(self) -> int:
        """num_heads x head_dim."""
        return self.num_heads * self.head_dim

    @property
    def scale(self) -> float:
        """What the scores are multiplied by: 1/sqrt(head_dim) unless given."""
        return 1.0 / math.sqrt(self.head_dim) if self.given_scale is None else self.given_scale

    @property
    def spread(self) -> float:
        """How many times larger than usual the logits are that decide: by the scale, and by ALiBi far from the keys.

        Queries behind the last key have a bias of at least slope x distance at every key; 8 is twice what logits reach.
        """
        beyond = max(0, self.q_len - self.kv_len) if self.masking.tensor == "alibi" else 0
        return self.scale * math.sqrt(self.head_dim) + beyond * math.pow(2.0, -8.0 / self.num_heads) / 8.0

    @property
    def problem_id(self) -> str:
        """12 hex digits that depend on the problem alone."""
        return digest(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them; those that came later only where they are not what was always meant."""
        fields = asdict(self)
        usual = {"v_head_dim": self.head_dim, "given_scale": None, "bias": False, "value_map": "joint"}
        return {name: value for name, value in fields.items() if name not in usual or value != usual[name]}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Problem":
        """The inverse of `as_dict`.

        Raises:
            ProblemError: an unknown or missing field, or a mask that contradicts the variant.
        """
        try:
            return cls(**fields)
        except TypeError as err:
            raise ProblemError(f"not the fields of a problem: {sorted(fields)} ({err})") from err

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every input of the problem by name, in order."""
        return self._sized(self.input_dims())

    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every output by name, `y` first; decode gives present_key and present_value too."""
        return self._sized(self.output_dims())

    def _sized(self, dims_by_name: dict[str, tuple[str | int, ...]]) -> dict[str, tuple[int, ...]]:
        sizes = {
            "batch_size": self.batch_size, "q_len": self.q_len, "kv_len": self.kv_len, "seq_len": self.q_len,
            "past_len": self.kv_len - self.q_len,
        }  # fmt: skip
        return {
            name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)
            for name, dims in dims_by_name.items()
        }

    def input_kinds(self) -> dict[str, str]:
        """Element type of every input by name, in order: the problem's dtype, or `bool`."""
        form = self.masking.form
        kinds = dict.fromkeys(self.input_shapes(), str(self.dtype))
        return {**kinds, MASK_NAME: "bool"} if form is not None and form.is_bool else kinds

    def output_shape(self) -> tuple[int, ...]:
        """Shape of `y`."""
        return self.output_shapes()[OUTPUT_NAME]

    def symbolic_dims(self) -> dict[str, tuple[str | int, ...]]:
        """The dims that an exported file must declare, inputs and outputs: a name where dynamic, else the number."""
        return {**self.input_dims(), **self.output_dims()}

    def _lengths(self) -> tuple[str, str]:
        """What q_len and kv_len are called: one name where they are one length."""
        is_square = self.variant == "self" or (self.part, self.variant) == ("block", "causal")
        return ("seq_len", "seq_len") if is_square else ("q_len", "kv_len")

    def output_dims(self) -> dict[str, tuple[str | int, ...]]:
        """Dims of the outputs, `y` first."""
        q_len, kv_len = self._lengths()
        if self.part == "core":
            return {OUTPUT_NAME: ("batch_size", self.num_heads, q_len, self.v_head_dim)}
        dims: dict[str, tuple[str | int, ...]] = {OUTPUT_NAME: ("batch_size", q_len, self.embed_dim)}
        if self.variant == "decode":
            dims["present_key"] = ("batch_size", self.num_kv_heads, kv_len, self.head_dim)
            dims["present_value"] = ("batch_size", self.num_kv_heads, kv_len, self.v_head_dim)
        return dims

    def input_dims(self) -> dict[str, tuple[str | int, ...]]:
        """Dims of the inputs, in order."""
        q_len, kv_len = self._lengths()
        inputs: dict[str, tuple[str | int, ...]]
        if self.part == "core":
            inputs = {
                "q": ("batch_size", self.num_heads, q_len, self.head_dim),
                "k": ("batch_size", self.num_kv_heads, kv_len, self.head_dim),
                "v": ("batch_size", self.num_kv_heads, kv_len, self.v_head_dim),
            }
        else:
            x = ("batch_size", q_len, self.embed_dim)
            context = ("batch_size", kv_len, self.embed_dim)
            inputs = {"query": x, "context": context} if self.variant == "cross" else {"x": x}
            if self.variant == "decode":
                inputs["past_key"] = ("batch_size", self.num_kv_heads, "past_len", self.head_dim)
                inputs["past_value"] = ("batch_size", self.num_kv_heads, "past_len", self.v_head_dim)
        if (form := self.masking.form) is not None:
            sizes: dict[str, str | int] = {"q_len": q_len, "kv_len": kv_len, "num_heads": self.num_heads}
            inputs[MASK_NAME] = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in form.dims)
        return inputs

    def score_bytes(self) -> int:
        """Bytes of one full score matrix (B, H, q_len, kv_len) in the problem's dtype."""
        return self.batch_size * self.num_heads * self.q_len * self.kv_len * DTYPE_BYTES[self.dtype]

    def static_key(self) -> str:
        """What an exported file depends on: everything but batch_size, q_len and kv_len."""
        fields = {k: v for k, v in self.as_dict().items() if k not in ("batch_size", "q_len", "kv_len")}
        return digest(fields)

    def label(self) -> str:
        """A short line for people: `block causal T=1024 fp32`."""
        lengths = f"T={self.q_len}" if self.q_len == self.kv_len else f"T={self.q_len}x{self.kv_len}"
        batch = "" if self.batch_size == 1 else f" B={self.batch_size}"
        usual = USUAL_MASK.get(self.variant, "none")
        words = [] if self.mask == usual else [self.mask]
        words += [] if self.num_kv_heads == self.num_heads else [f"H={self.num_heads}/{self.num_kv_heads}"]
        words += [] if self.v_head_dim == self.head_dim else [f"D={self.head_dim}/{self.v_head_dim}"]
        words += [] if self.given_scale is None else [f"scale={self.given_scale:g}"]
        words += ["bias"] if self.bias else []
        words += [] if self.value_map == "joint" else [f"value map {self.value_map}"]
        return " ".join([f"{self.part} {self.variant} {lengths}{batch} {self.dtype}", *words])


def digest(value: Any) -> str:
    """12 hex digits of SHA-256 over the value as sorted JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
