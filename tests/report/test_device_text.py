"""What a row of a GPU says of the GPU."""

from typing import Any

import pytest

from attnbench.records import Record
from attnbench.report.device_text import device_lines

CLOCKS = {"sm_clock_mhz": [1200, 1980], "power_w": [699.5, 699.5], "readings": 20, "throttled_readings": 3,
          "throttle_reasons": ["power cap"]}  # fmt: skip


def lines(flags: tuple[str, ...] = (), **facts: Any) -> list[str]:
    record = Record(
        run_id="r", started_at_utc="", case_id="c", problem_id="p", arm="a", part="block", variant="self", dtype="fp32",
        exporter="torch", runtime="torch-sdpa", status="ok", seed=0, attnbench_version="0", facts=facts,
        flags=list(flags),
    )  # fmt: skip
    return list(device_lines(record))


def test_clocks_are_ranges_with_units_and_what_held_them_down() -> None:
    assert lines(device_clocks=CLOCKS, device_monitor="NVML") == [
        "Read after 20 visits: SM clock 1200 to 1980 MHz, power 699.5 W.",
        "The GPU held its clocks down after 3 of them: power cap.",
    ]
    quiet = CLOCKS | {"throttled_readings": 0, "throttle_reasons": []}
    assert len(lines(device_clocks=quiet)) == 1


def test_why_clocks_are_not_known_is_said() -> None:
    found = lines(device_monitor="nvidia-ml-py is not installed")
    assert found == ["Clocks and power are not known: nvidia-ml-py is not installed."]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("device_shared",), "was shared, so its peak memory may be another's: process 7"),
        ((), "shared is not known: process 7"),
    ],
)
def test_a_shared_device_is_told_from_one_of_which_it_is_not_known(flags: tuple[str, ...], words: str) -> None:
    assert words in lines(flags, device_sharing="process 7")[0]


def test_torchs_own_peak_is_told() -> None:
    assert lines(device_allocator_peak_bytes=6 << 20) == ["By torch's own count the peak is 6.00 MiB."]


def test_rows_of_the_cpu_say_nothing() -> None:
    assert lines(threads=1) == []
