"""What is computed: one attention problem, its tensors and its cost."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from attnbench.errors import ProblemError

Part = Literal["block", "core"]
Variant = Literal["self", "cross", "causal"]
Mask = Literal["none", "causal_top_left"]
DType = Literal["fp32", "fp16", "bf16"]

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
OUTPUT_NAME = "y"

# A tensor of more than this many bytes is refused before anything is allocated.
MAX_TENSOR_BYTES = 1 << 40

_CHOICES: dict[str, tuple[str, ...]] = {
    "part": get_args(Part),
    "variant": get_args(Variant),
    "dtype": get_args(DType),
}
_SIZES = ("batch_size", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One attention problem; validated on construction.

    Shapes: block `self` and `causal` take x (B, T, E) and give y (B, T, E); block `cross` takes query (B, q_len, E)
    and context (B, kv_len, E); core takes q (B, H, q_len, D), k and v (B, H_kv, kv_len, D) and gives (B, H, q_len, D).

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

    def __post_init__(self) -> None:
        """Refuse what cannot be computed."""
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if value not in allowed:
                raise ProblemError(f"{field} must be one of {', '.join(allowed)}; got {value!r}")
        for field in _SIZES:
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise ProblemError(f"{field} must be a whole number of at least 1, got {value!r}")
        if self.num_kv_heads != self.num_heads:
            raise ProblemError(
                f"num_kv_heads must equal num_heads ({self.num_heads}), got {self.num_kv_heads}: "
                "grouped heads are not supported yet"
            )
        if self.q_len != self.kv_len and (self.variant == "self" or (self.part, self.variant) == ("block", "causal")):
            raise ProblemError(
                f"{self.part} {self.variant}: q_len must equal kv_len, got {self.q_len} and {self.kv_len}; "
                "use variant cross for different lengths"
            )
        self._refuse_impossible_size()

    def _refuse_impossible_size(self) -> None:
        weight = (self.embed_dim, self.embed_dim) if self.part == "block" else ()
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
        batch_size: int = 1,
        num_heads: int = 8,
        head_dim: int = 64,
        dtype: DType = "fp32",
    ) -> "Problem":
        """A problem at T = seq_len with the defaults of the design: cross has kv_len = T/2 (at least 1), others T."""
        if kv_len is None:
            kv_len = max(1, seq_len // 2) if variant == "cross" else seq_len
        return cls(
            part=part, variant=variant, batch_size=batch_size, q_len=seq_len, kv_len=kv_len,
            num_heads=num_heads, num_kv_heads=num_heads, head_dim=head_dim, dtype=dtype,
        )  # fmt: skip

    def at(self, *, q_len: int, kv_len: int | None = None, batch_size: int | None = None) -> "Problem":
        """The same problem at other sizes; kv_len follows q_len unless the variant is cross."""
        if kv_len is None:
            kv_len = max(1, q_len // 2) if self.variant == "cross" else q_len
        return replace(self, q_len=q_len, kv_len=kv_len, batch_size=batch_size or self.batch_size)

    @property
    def mask(self) -> Mask:
        """The mask, named by its alignment; a consequence of the variant."""
        return "causal_top_left" if self.variant == "causal" else "none"

    @property
    def embed_dim(self) -> int:
        """num_heads x head_dim."""
        return self.num_heads * self.head_dim

    @property
    def scale(self) -> float:
        """What the scores are multiplied by: 1/sqrt(head_dim)."""
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def problem_id(self) -> str:
        """12 hex digits that depend on the problem alone."""
        return digest(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """The fields and the mask, as JSON can hold them."""
        return {**asdict(self), "mask": self.mask}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Problem":
        """The inverse of `as_dict`.

        Raises:
            ProblemError: an unknown or missing field, or a mask that contradicts the variant.
        """
        fields = dict(fields)
        mask = fields.pop("mask", None)
        try:
            problem = cls(**fields)
        except TypeError as err:
            raise ProblemError(f"not the fields of a problem: {sorted(fields)} ({err})") from err
        if mask is not None and mask != problem.mask:
            raise ProblemError(f"variant {problem.variant} means mask {problem.mask}, got mask {mask!r}")
        return problem

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every input of the problem by name, in order."""
        if self.part == "core":
            kv_shape = (self.batch_size, self.num_kv_heads, self.kv_len, self.head_dim)
            return {"q": (self.batch_size, self.num_heads, self.q_len, self.head_dim), "k": kv_shape, "v": kv_shape}
        if self.variant == "cross":
            return {
                "query": (self.batch_size, self.q_len, self.embed_dim),
                "context": (self.batch_size, self.kv_len, self.embed_dim),
            }
        return {"x": (self.batch_size, self.q_len, self.embed_dim)}

    def output_shape(self) -> tuple[int, ...]:
        """Shape of the one output, `y`."""
        if self.part == "core":
            return (self.batch_size, self.num_heads, self.q_len, self.head_dim)
        return (self.batch_size, self.q_len, self.embed_dim)

    def symbolic_dims(self) -> dict[str, tuple[str | int, ...]]:
        """The dims that an exported file must declare, inputs and `y`: a name where dynamic, else the number."""
        if self.part == "core":
            q_len, kv_len = ("seq_len", "seq_len") if self.variant == "self" else ("q_len", "kv_len")
            kv = ("batch_size", self.num_kv_heads, kv_len, self.head_dim)
            q = ("batch_size", self.num_heads, q_len, self.head_dim)
            return {"q": q, "k": kv, "v": kv, OUTPUT_NAME: q}
        if self.variant == "cross":
            query = ("batch_size", "q_len", self.embed_dim)
            return {"query": query, "context": ("batch_size", "kv_len", self.embed_dim), OUTPUT_NAME: query}
        x = ("batch_size", "seq_len", self.embed_dim)
        return {"x": x, OUTPUT_NAME: x}

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
        return f"{self.part} {self.variant} {lengths}{batch} {self.dtype}"


def digest(value: Any) -> str:
    """12 hex digits of SHA-256 over the value as sorted JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
