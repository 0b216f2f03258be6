"""Which integers a file can take."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from attnbench.model_bench.tables import table_sizes
from tests.model_bench import models


def test_inputs_that_choose_rows_of_a_table_are_found(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Cast", ["ids"], ["narrow"], to=TensorProto.INT32), node("Identity", ["narrow"], ["same"]),
        node("Gather", ["words", "same"], ["a"]), node("Gather", ["columns", "ids"], ["b"], axis=-1),
        node("Gather", ["words", "one"], ["c"]), node("Add", ["mask", "mask"], ["d"]),
        node("Gather", ["words", "d"], ["e"]), node("Gather", ["x", "kind"], ["f"]),
    ]  # fmt: skip
    ints = [models.value(name, TensorProto.INT64, ("n",)) for name in ("ids", "mask", "kind")]
    file = models.save(
        tmp_path / "tables.onnx", nodes, [*ints, models.value("x", TensorProto.FLOAT, (7,))],
        [models.value(name, TensorProto.FLOAT, (None,) * rank) for name, rank in
         (("a", 2), ("b", 2), ("c", 1), ("e", 2), ("f", 1))],
        {"words": np.zeros((9, 4), np.float32), "columns": np.zeros((4, 6), np.float32), "one": np.array(1)},
    )  # fmt: skip
    # ids: rows of `words` (9) and columns of `columns` (6). mask + mask is another number, x is no stored table.
    assert table_sizes(path=str(file)) == {"sizes": {"ids": 6}}
