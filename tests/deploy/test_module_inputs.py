import os
from pathlib import Path

import numpy as np
import pytest

from attnbench.deploy.module_inputs import Case, ModuleInputs, cases_of, make_arrays, read_inputs
from attnbench.errors import InputError

X = '[inputs.x]\ndtype = "fp32"\ndims = ["batch", "T", 32]\n'
MASK = '[inputs.mask]\ndtype = "bool"\ndims = ["batch", 1, "T", "T"]\n'


def read(folder: Path, text: str) -> ModuleInputs:
    path = folder / "inputs.toml"
    path.write_text(text, encoding="utf-8")
    return read_inputs(path)


def test_free_dims_get_examples_that_differ_and_are_no_size_of_the_module(tmp_path: Path) -> None:
    found = read(tmp_path, X.replace(" 32]", " 11]") + "[ranges.T]\nmax = 512\n")
    assert found.examples == {"batch": 13, "T": 17}
    assert [(r.least, r.most) for r in found.ranges.values()] == [(1, 64), (1, 512)]


def test_cases_try_odd_sizes_two_twice_the_example_and_both_ends_and_sizes_above_one_first(tmp_path: Path) -> None:
    sizes = [case.sizes for case in cases_of(read(tmp_path, X + "[ranges.T]\nmax = 512\nexample = 10\n"))]
    lengths = [size["T"] for size in sizes]
    assert {1, 2, 10, 20, 512} <= set(lengths)
    assert any(length % 2 and length > 1 for length in lengths)
    assert {"batch": 1, "T": 1} in sizes
    first_of_one = next(index for index, size in enumerate(sizes) if 1 in size.values())
    assert all(1 in size.values() for size in sizes[first_of_one:])


def test_sizes_stay_within_the_range(tmp_path: Path) -> None:
    text = X + "[ranges.T]\nmin = 3\nmax = 6\n[ranges.batch]\nmin = 2\nmax = 2\n"
    assert {case.sizes["T"] for case in cases_of(read(tmp_path, text))} == {3, 5, 6}


def test_the_first_rows_of_booleans_are_tried_all_false_and_all_true(tmp_path: Path) -> None:
    found = read(tmp_path, X + MASK)
    rows = {case.name: make_arrays(found, case)["mask"][..., 0, :] for case in cases_of(found)}
    assert not rows["rows-false"].any()
    assert rows["rows-true"].all()
    assert not any("rows" in case.name for case in cases_of(read(tmp_path, X + MASK + "whole_rows = false\n")))


def test_no_row_of_a_boolean_is_by_chance_all_of_what_is_rare(tmp_path: Path) -> None:
    mostly, rarely = read(tmp_path, MASK), read(tmp_path, MASK + "true = 0.1\n")
    case = Case(name="many", sizes={"batch": 200, "T": 2})
    assert make_arrays(mostly, case)["mask"].any(axis=-1).all()
    assert not make_arrays(rarely, case)["mask"].all(axis=-1).any()


def test_integers_cover_their_range_and_floats_have_their_spread(tmp_path: Path) -> None:
    ids = '[inputs.ids]\ndtype = "int32"\ndims = ["N"]\nfrom = -1\nto = 2\n'
    text = ids + '[inputs.x]\ndtype = "fp16"\ndims = ["N"]\nstd = 3\n'
    made = make_arrays(read(tmp_path, text), Case(name="large", sizes={"N": 4000}))
    assert made["ids"].dtype == np.int32
    assert set(made["ids"].tolist()) == {-1, 0, 1, 2}
    assert made["x"].dtype == np.float16
    assert made["x"].std() == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"a module takes at least one tensor, write \[inputs.x\]"),
        ("inputs = 3", "inputs: "),
        (X.replace("fp32", "fp64"), "inputs.x.dtype: .*'fp64'"),
        (X.replace("32]", "0]"), "inputs.x.dims.2.*got 0"),
        (X + "[ranges.S]\nmax = 9\n", r"no input has a dim called \['S'\]"),
        (X + "[ranges.T]\nexample = 7\n[ranges.batch]\nexample = 7\n", "two free dims have one example"),
        (X + "[ranges.T]\nexample = 1\n", "ranges.T.example: .*greater than or equal to 2, got 1"),
        (X + "[ranges.T]\nexample = 99\n", "example must be from min to max, got T: 1 <= 99 <= 64"),
        (X + "sizes = 3\n", "inputs.x.sizes: Extra inputs are not permitted"),
        (X + X.replace("x]", "ids]").replace("fp32", "int64"), "an integer input needs from and to"),
        (X + X.replace("x]", "z]").replace("fp32", "fp16"), "dtypes are fp16 and fp32: module and inputs have one"),
        (X.replace("inputs.x", 'inputs."a b"'), r"\['a b'\] must be names of letters"),
        ('outputs = ["x"]\n' + X, "outputs has the name of an input"),
        ("call = {x = 1}\n" + X, "call has the name of an input"),
        ('dtype = "bf16"\n' + X, "dtypes are bf16 and fp32: module and inputs have one"),
        ("[inputs", "is not TOML"),
    ],
)
def test_what_no_module_can_have_is_refused_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "pytorch_model.bin", "a.pkl"])
def test_a_pickle_as_weights_is_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}': a pickle runs code when it is read; .*save_file"):
        read(tmp_path, f'weights = "{name}"\n{X}')


def test_weights_are_named_from_the_folder_of_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, f'weights = "w/model.safetensors"\n{X}')
    assert found.weights == str(tmp_path / "w" / "model.safetensors")


def test_inputs_that_no_machine_holds_are_refused_before_they_are_made(tmp_path: Path) -> None:
    found = read(tmp_path, X + "[ranges.T]\nmax = 1000000000\n")
    with pytest.raises(InputError, match=r"would take 238 GiB, at most 4 are made; lower the max"):
        cases_of(found)


def test_a_missing_file_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.toml' cannot be read: No such file"):
        read_inputs(tmp_path / "nowhere.toml")


def test_a_pipe_a_huge_file_and_deep_toml_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "inputs.toml"
    os.mkfifo(path)
    with pytest.raises(InputError, match="pipe or device"):
        read_inputs(path)
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(InputError, match="over 1,048,576 bytes"):
        read_inputs(path)
    for text in ("x=" + "[" * 5000 + "]" * 5000, "\udcff"):
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(InputError, match="is not TOML"):
            read_inputs(path)


def test_the_file_that_the_documentation_shows_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "modules.md").read_text(encoding="utf-8")
    shown = text.partition("```toml\n")[2].partition("```")[0]
    found = read(tmp_path, shown)
    assert list(found.inputs) == ["x", "mask", "positions"]
    assert found.examples["T"] == 13
    assert "docs/modules.md" in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
