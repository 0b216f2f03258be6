"""Operators that attention is made of, or that are one."""

PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum"})
ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention",
                       "PackedAttention", "DecoderMaskedMultiHeadAttention", "LongformerAttention"})  # fmt: skip
QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
