"""A file takes values, a torch module may look at strides: what differs by layout is refused, `view` is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench.deploy.module_inputs import read_inputs
from attnbench.deploy.module_reference import Reference
from attnbench.deploy.targets import find_target
from attnbench.deploy.user_module import ModuleSource
from attnbench.deploy.write import write_bundle
from attnbench.errors import InputError

torch = pytest.importorskip("torch")
TOML = '[inputs.x]\ndtype = "fp32"\ndims = ["batch", "T", 8]\n'


class Views(torch.nn.Module):  # type: ignore[misc]
    """Refuses what is not contiguous."""

    def forward(self, x: Any) -> Any:
        return x.view(x.shape[0], -1, 2).sum(-1)


class ByLayout(torch.nn.Module):  # type: ignore[misc]
    """Another answer for another layout."""

    def forward(self, x: Any) -> Any:
        return x * 2 if x.is_contiguous() else x * 3


class Reads(torch.nn.Module):  # type: ignore[misc]
    """Reads the memory behind the values."""

    def forward(self, x: Any) -> Any:
        return x.as_strided((x.shape[0], 8), (x.stride(0), 1)) + 0.0


class Multiplies(torch.nn.Module):  # type: ignore[misc]
    """Any layout, with sums whose order depends on it."""

    def forward(self, x: Any) -> Any:
        return torch.softmax(x @ x.mT, -1) @ x, (x > 0).any(-1), x.argmax(-1)


def refuses(module: Any, folder: Path) -> bool:
    (folder / "in.toml").write_text(TOML, encoding="utf-8")
    reference = Reference("tests:Module", module, read_inputs(folder / "in.toml"))
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 5, 8), dtype=np.float32)}
    return reference.refuses_strides(inputs, reference.expected(inputs))


def test_view_refuses_strides_and_sums_do_not_depend_on_them(tmp_path: Path) -> None:
    assert refuses(Views(), tmp_path)
    assert not refuses(Multiplies(), tmp_path)


@pytest.mark.parametrize("module", [ByLayout, Reads])
def test_what_depends_on_the_layout_is_refused_with_the_way_out(module: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gives something else for the same values .* not contiguous .* call contig"):
        refuses(module(), tmp_path)


def test_a_bundle_says_that_its_module_refuses_strides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import torch\n\nclass Views(torch.nn.Module):\n    def forward(self, x):\n        return x.view(-1, 4)\n"
    (tmp_path / "strided_blocks.py").write_text(code, encoding="utf-8")
    (tmp_path / "in.toml").write_text(TOML, encoding="utf-8")
    source = ModuleSource("strided_blocks:Views", Path("in.toml"))
    write_bundle(source, find_target("torch"), tmp_path / "bundle")
    assert "refuses inputs that are not contiguous" in (tmp_path / "bundle" / "README.md").read_text(encoding="utf-8")
