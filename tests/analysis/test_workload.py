"""A workload file is read as it is meant, or refused with its row."""

import os
from pathlib import Path

import pytest

from attnbench.analysis.workload import Requests, read_workload
from attnbench.errors import InputError


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "lengths.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_rows_of_the_same_size_are_added_up(tmp_path: Path) -> None:
    path = written(tmp_path, "batch_size,seq_len,count\n1,512,3\n8,128,2\n1,512,1.5\n")
    assert read_workload(path) == [Requests(1, 512, 4.5), Requests(8, 128, 2.0)]


def test_only_lengths_count_once_each(tmp_path: Path) -> None:
    assert read_workload(written(tmp_path, "\ufeffT\r\n128\r\n128\r\n\r\n300\r\n")) == [
        Requests(1, 128, 2.0),
        Requests(1, 300, 1.0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("batch_size,count\n1,2\n", "no column seq_len"),
        ("seq_len,T\n1,2\n", "seq_len twice"),
        ("seq_len\n12.5\n", "row 2: seq_len must be a whole number"),
        ("seq_len\n0\n", "row 2: seq_len"),
        ("seq_len\n-4\n", "row 2: seq_len"),
        ("seq_len\n99999999999999\n", "row 2: seq_len"),
        ("seq_len,count\n8,nan\n", "row 2: count"),
        ("seq_len,count\n8,-1\n", "row 2: count"),
        ("seq_len,count\n8\n", "row 2: count"),
        ("seq_len,count\n8,0\n", "has no requests"),
        ("seq_len\n", "has no requests"),
        (b"\xff\xfe\x00seq", "not UTF-8"),
        ("seq_len\n\n\n7\n\nx\n", "row 6: seq_len"),
        ("seq_len\n" + "9" * 5000 + "\n", "row 2: seq_len must be a whole number from 1 to 1073741824, got '9{40}...'"),
        ('seq_len\n"' + "x" * 200_000 + '"\n', "row 2: field larger than field limit"),
        ("seq_len,count\n8,1_000\n", "row 2: count"),
        ("seq_len,count\n8,1e308\n9,1e308\n", "row 2: count must be a number from 0 to 1e"),
        ("seq_len,count\n8,\u0663\n", "row 2: count"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_workload(written(tmp_path, text))


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the workload"):
        read_workload(tmp_path / "none.csv")


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        read_workload(tmp_path)


def test_a_pipe_and_a_device_without_end_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(InputError, match="pipe or a device"):
            read_workload(path)


def test_a_file_beyond_64_mib_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as f:
        f.truncate(1 << 40)  # sparse
    with pytest.raises(InputError, match="the most is 64"):
        read_workload(path)
