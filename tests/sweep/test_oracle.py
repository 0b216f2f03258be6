"""The judge's files."""

from pathlib import Path

import numpy as np

from attnbench.problem import Problem
from attnbench.sweep.oracle import make_reference


def test_a_reference_made_anew_does_not_change_the_file_that_a_worker_has_mapped(tmp_path: Path) -> None:
    """np.save writes in place: two exports verified at once killed each other's worker by SIGBUS."""
    problem = Problem.make(part="core", seq_len=8, num_heads=2, head_dim=8)
    path = Path(make_reference(problem, 0, "normal", tmp_path)["path"])
    mapped, file_number = np.load(path, mmap_mode="r"), path.stat().st_ino
    again = make_reference(problem, 0, "normal", tmp_path)
    assert Path(again["path"]) == path
    assert path.stat().st_ino != file_number
    np.testing.assert_array_equal(mapped, np.load(path))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
