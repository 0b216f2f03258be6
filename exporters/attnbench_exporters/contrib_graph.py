"""The graph around one fused attention operator of ONNX Runtime (domain com.microsoft, CPU kernels of 1.32).

`Attention` (packed projections) for plain causal blocks; `GroupQueryAttention` for grouped heads, for a
sliding window in a block and for decode; `MultiHeadAttention` for all else. Every position rule, bias and key padding
goes to the operator where it has a word for it; what it has no word for is computed in the graph and added to the
scores.
"""

from functools import cached_property
from typing import Any

import numpy as np

from attnbench.interfaces import Array
from attnbench.problem import CACHE_ROOM, MASK_NAME, OUTPUT_NAME, Problem
from attnbench_exporters.graph import Graph

DOMAIN = "com.microsoft"
PACKED, MULTI_HEAD, GROUPED = "Attention", "MultiHeadAttention", "GroupQueryAttention"
GROUPED_HEAD_DIM = 8  # GroupQueryAttention takes multiples of it
_IR_VERSION = 10  # what torch.onnx writes too; readers since onnx 1.16 take it

# What masked scores are set to. The operators' own default, -10000, is no mask for large scores. fp32 and fp16.
MASKED = {"fp32": float(np.finfo(np.float32).min), "fp16": float(np.finfo(np.float16).min)}
_NUMPY = {"fp32": np.float32, "fp16": np.float16}


def operator_of(problem: Problem) -> str:
    """Which operator computes the problem; does not depend on batch_size and lengths, as a file serves them all."""
    p = problem
    is_even = p.v_head_dim == p.head_dim
    if p.variant == "decode" or p.num_kv_heads != p.num_heads:
        return GROUPED
    if p.part == "block" and p.masking.window is not None and is_even and p.head_dim % GROUPED_HEAD_DIM == 0:
        return GROUPED
    # Without a mask only MultiHeadAttention never holds all scores: 1.1 to 1.2 times as fast from T = 2048 on.
    is_plain = p.part == "block" and p.variant == "causal" and p.masking.form is None and p.masking.window is None
    # OpenVINO 2026.4 reads the packed operator without its scale, so that only the usual one is written so.
    return PACKED if is_plain and is_even and p.given_scale is None else MULTI_HEAD


def writes_positions(problem: Problem) -> bool:
    """Is the position rule computed in the graph?

    It is where the operator has no word for it, and beside a boolean mask: whether a query is left without any key
    depends on both.
    """
    masking = problem.masking
    if not masking.position:
        return False
    if masking.form is not None and masking.form.is_bool:
        return True
    is_known = masking.window is None and (problem.part == "block" or masking.position == "causal_top_left")
    return operator_of(problem) == MULTI_HEAD and not is_known


def build_model(problem: Problem, opset: int, weights: dict[str, Array]) -> Any:
    """The onnx.ModelProto of the problem around one fused operator."""
    from onnx import TensorProto, helper

    graph = Graph()
    _Writer(problem, graph, weights).write()
    elements = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bool": TensorProto.BOOL}
    kinds, inputs = problem.input_kinds(), problem.input_dims()
    values = [helper.make_tensor_value_info(name, elements[kinds[name]], dims) for name, dims in inputs.items()]
    if CACHE_ROOM in graph.constants:  # an input with a default
        values.append(helper.make_tensor_value_info(CACHE_ROOM, TensorProto.INT64, ()))
    outputs = [
        helper.make_tensor_value_info(name, elements[problem.dtype], dims)
        for name, dims in problem.output_dims().items()
    ]
    made = helper.make_graph(graph.nodes, "attnbench", values, outputs, graph.initializers())
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="attnbench")


class _Writer:
    """Writes one problem into a graph. Shapes: (B, len, H D) before the operator, (B, q_len, H D_v) after it."""

    def __init__(self, problem: Problem, graph: Graph, weights: dict[str, Array]) -> None:
        self.problem, self.graph, self.weights = problem, graph, weights
        self.operator = operator_of(problem)

    def write(self) -> None:
        """Inputs to `y`."""
        if self.operator == PACKED:
            self._finish(self._packed(), "")
            return
        query, key, value = self._beside()
        allowed = self._allowed()
        if self.operator == GROUPED:
            attended = self._grouped(query, key, value, allowed)
        else:
            attended = self._multi_head(query, key, value, allowed)
        is_guarded = bool(allowed) and self.problem.masking.may_mask_rows
        self._finish(attended, self._has_key(allowed) if is_guarded else "")

    def _packed(self) -> str:
        """X (B, T, E), the weights of three projections side by side (E, 3E) -> (B, T, E).

        OpenVINO 2026.4 dies by a signal without a bias: it is zeros where the problem has none.
        """
        p, graph = self.problem, self.graph
        packed = np.concatenate([self.weights[name] for name in ("w_q", "w_k", "w_v")], axis=1)
        biases = [self.weights.get(name, np.zeros(p.embed_dim, packed.dtype)) for name in ("b_q", "b_k", "b_v")]
        w, b = graph.constant("w_qkv", packed), graph.constant("b_qkv", np.concatenate(biases))
        return graph.add(PACKED, "x", w, b, out="attended", domain=DOMAIN, **self._attributes(p.mask != "none"))

    def _attributes(self, unidirectional: bool) -> dict[str, Any]:
        p = self.problem
        return {
            "num_heads": p.num_heads, "scale": p.scale, "unidirectional": int(unidirectional),
            "mask_filter_value": MASKED[p.dtype],
        }  # fmt: skip

    def _beside(self) -> tuple[str, str, str]:
        """Queries, keys and values with their heads beside each other: (B, len, heads x size)."""
        p = self.problem
        if p.part == "block":
            query, context = ("query", "context") if p.variant == "cross" else ("x", "x")
            return self._project(query, "q"), self._project(context, "k"), self._project(context, "v")
        key = "k"
        if p.masking.position and not writes_positions(p) and self.operator == MULTI_HEAD:
            # Where the lengths differ this fails in the runtime: the operator would answer, with another alignment.
            shape = self.graph.add("Shape", "q", out="q_shape")
            key = self.graph.add("Reshape", "k", shape, out="equal_lengths_only")
        query = self._merged("q", p.num_heads * p.head_dim)
        if self.operator == MULTI_HEAD and p.v_head_dim == p.head_dim:
            return query, key, "v"  # taken as they are
        kv_heads = p.num_kv_heads
        return query, self._merged(key, kv_heads * p.head_dim), self._merged("v", kv_heads * p.v_head_dim)

    def _merged(self, source: str, width: int) -> str:
        """(B, heads, len, size) -> (B, len, heads x size)."""
        rows = self.graph.add("Transpose", source, out=f"{source}_rows", perm=[0, 2, 1, 3])
        return self.graph.reshape(rows, [0, 0, width], out=f"{source}_merged")

    def _project(self, source: str, letter: str, out: str = "") -> str:
        """Source @ w, plus b where there is one."""
        out = out or f"projected_{letter}"
        w, b = f"w_{letter}", f"b_{letter}"
        self.graph.constant(w, self.weights[w])
        if b not in self.weights:
            return self.graph.add("MatMul", source, w, out=out)
        plain = self.graph.add("MatMul", source, w, out=f"{out}_unbiased")
        return self.graph.add("Add", plain, self.graph.constant(b, self.weights[b]), out=out)

    # ---- masks

    def _allowed(self) -> str:
        """Which keys a query may see, bool (B or 1, H or 1, q_len or 1, kv_len); empty: the operator knows it all."""
        form, graph = self.problem.masking.form, self.graph
        by_position = self._by_position() if writes_positions(self.problem) else ""
        if form is None or not form.is_bool:
            return by_position
        mask = MASK_NAME
        if len(form.dims) == 2:
            mask = graph.add("Unsqueeze", MASK_NAME, graph.constant("leading", [0, 1]), out="mask_4d")
        return graph.add("And", mask, by_position, out="allowed") if by_position else mask

    def _by_position(self) -> str:
        """The position rule, bool (1, 1, q_len, kv_len)."""
        graph, masking = self.graph, self.problem.masking
        q_len, kv_len = self._q_len, self._kv_len
        zero, one = graph.constant("zero", 0), graph.constant("one", 1)
        key = graph.add("Range", zero, kv_len, one, out="key_index")  # (kv_len,)
        row = graph.add("Range", zero, q_len, one, out="query_index")
        query = graph.reshape(row, [1, 1, -1, 1], out="query_column")  # (1, 1, q_len, 1)
        if masking.position == "causal_bottom_right":
            offset = graph.add("Sub", kv_len, q_len, out="offset")
            query = graph.add("Add", query, offset, out="query_aligned")
        allowed = graph.add("LessOrEqual", key, query, out="by_position")
        if masking.window is None:
            return allowed
        first = graph.add("Sub", query, graph.constant("window", masking.window), out="before_window")
        inside = graph.add("Greater", key, first, out="inside_window")
        return graph.add("And", allowed, inside, out="by_window")

    @cached_property
    def _q_len(self) -> str:
        is_core = self.problem.part == "core"
        source = "q" if is_core else "query" if self.problem.variant == "cross" else "x"
        return self.graph.size(source, 2 if is_core else 1, out="q_len")

    @cached_property
    def _kv_len(self) -> str:
        """The number of keys; of decode all that are in the cache after the step."""
        if self.problem.part == "core":
            return self.graph.size("k", 2, out="kv_len")
        if self.problem.variant == "cross":
            return self.graph.size("context", 1, out="kv_len")
        if self.problem.variant != "decode":
            return self._q_len
        graph = self.graph
        cache_len = graph.size("past_key", 2, out="cache_len")
        past_len = graph.add("Sub", cache_len, graph.constant(CACHE_ROOM, 0), out="past_len")
        return graph.add("Add", past_len, self._q_len, out="kv_len")

    def _bias(self, allowed: str) -> str:
        """What is added to the scores, (B or 1, H or 1, q_len, kv_len); empty: nothing."""
        graph, masking, dtype = self.graph, self.problem.masking, self.problem.dtype
        if not allowed:
            return MASK_NAME if masking.is_added else ""
        masked = graph.constant("masked", np.array(MASKED[dtype], _NUMPY[dtype]))
        kept = MASK_NAME if masking.is_added else graph.constant("kept", np.array(0.0, _NUMPY[dtype]))
        bias = graph.add("Where", allowed, kept, masked, out="bias")
        if masking.position or masking.tensor != "key_padding":
            return bias
        sizes = [
            graph.constant("front", [1, 1]),
            graph.reshape(self._q_len, [1], out="rows"),
            graph.constant("back", [1]),
        ]
        every_row = graph.add("Concat", *sizes, out="every_row", axis=0)
        return graph.add("Expand", bias, every_row, out="bias_rows")  # the operators want one row per query

    def _has_key(self, allowed: str) -> str:
        """Which queries see any key: bool (B or 1, q_len or 1, H or 1, 1)."""
        graph = self.graph
        counted = graph.add("Cast", allowed, out="allowed_ones", to=1)  # onnx.TensorProto.FLOAT
        count = graph.add("ReduceSum", counted, graph.constant("last_axis", [-1]), out="key_count", keepdims=1)
        some = graph.add("Greater", count, graph.constant("no_keys", np.array(0.0, np.float32)), out="has_key")
        return graph.add("Transpose", some, out="has_key_rows", perm=[0, 2, 1, 3])

    # ---- the operators, and what follows

    def _multi_head(self, query: str, key: str, value: str, allowed: str) -> str:
        """Key padding alone goes in as it is; every other mask as a bias."""
        p, graph = self.problem, self.graph
        padding, bias = "", ""
        if p.mask == "key_padding":
            flat = graph.reshape(MASK_NAME, [0, -1], out="padding")  # (B, kv_len)
            padding = graph.add("Cast", flat, out="padding_int32", to=6)  # onnx.TensorProto.INT32
        else:
            bias = self._bias(allowed)
        attributes = self._attributes(bool(p.masking.position) and not writes_positions(p))
        inputs = (query, key, value, "", padding, bias)
        return graph.add(MULTI_HEAD, *inputs, out="attended", domain=DOMAIN, **attributes)

    def _grouped(self, query: str, key: str, value: str, allowed: str) -> str:
        """One length for queries and new keys; causal is bottom-right, and decode gives the cache back.

        With the lengths of the new tokens as an input the operator takes several of them at any batch size.
        """
        p, graph = self.problem, self.graph
        total = graph.add("Cast", self._kv_len, out="total_len", to=6)  # onnx.TensorProto.INT32
        last = graph.add("Sub", total, graph.constant("one_int32", np.array(1, np.int32)), out="last_index")
        batch = graph.add("Shape", query, out="batch_size", start=0, end=1)
        lasts = graph.add("Expand", last, batch, out="last_indices")  # (B,)
        inputs = [query, key, value, "", "", lasts, total, "", "", "", self._bias(allowed)]
        outs = ["attended"]
        if p.variant == "decode":
            new = graph.add("Cast", self._q_len, out="new_len", to=6)
            inputs[3:5] = "past_key", "past_value"
            inputs += ["", "", "", "", "", graph.add("Expand", new, batch, out="new_lens")]
            outs += ["present_key", "present_value"]
        window = {} if p.masking.window is None else {"local_window_size": p.masking.window}
        graph.add_many(
            GROUPED, *inputs, outs=outs, domain=DOMAIN, num_heads=p.num_heads, kv_num_heads=p.num_kv_heads,
            scale=p.scale, causal=int(bool(p.masking.position)), **window,
        )  # fmt: skip
        return "attended"

    def _finish(self, attended: str, has_key: str) -> None:
        """Heads apart, zeros where a query sees no key, then the output projection."""
        p, graph = self.problem, self.graph
        is_joint = p.part == "block" and p.value_map == "joint"
        if has_key or not is_joint:
            attended = graph.reshape(attended, [0, 0, p.num_heads, p.v_head_dim], out="by_head")
        if has_key:
            zero = graph.constant("no_answer", np.array(0.0, _NUMPY[p.dtype]))
            attended = graph.add("Where", has_key, attended, zero, out="answered")  # (B, q_len, H, D_v)
        if is_joint:
            if has_key:
                attended = graph.reshape(attended, [0, 0, p.num_heads * p.v_head_dim], out="answered_beside")
            self._project(attended, "o", OUTPUT_NAME)
            return
        heads = OUTPUT_NAME if p.part == "core" else "heads"
        graph.add("Transpose", attended, out=heads, perm=[0, 2, 1, 3])  # (B, H, q_len, D_v)
        if p.part == "block":
            self._lift(heads)

    def _lift(self, heads: str) -> None:
        """Value-up: every head (q_len, D_v) to (q_len, E), summed over heads."""
        p, graph = self.problem, self.graph
        value_up = self.weights["w_o"].reshape(p.num_heads, p.v_head_dim, p.embed_dim)
        lifted = graph.add("MatMul", heads, graph.constant("value_up", value_up), out="lifted")  # (B, H, q_len, E)
        out = "summed" if "b_o" in self.weights else OUTPUT_NAME
        graph.add("ReduceSum", lifted, graph.constant("head_axis", [1]), out=out, keepdims=0)
        if out != OUTPUT_NAME:
            graph.add("Add", out, graph.constant("b_o", self.weights["b_o"]), out=OUTPUT_NAME)
