"""Peak memory: real measurements in child processes, and the counters on made-up /proc files."""

import subprocess
import sys
import textwrap

import pytest

from attnbench.errors import MeasurementError
from attnbench.measure import memory as m

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is measured on Linux only")

_SPIKE = """
import mmap, sys
from attnbench.measure.memory import measure_peak

def spike():
    pages = mmap.mmap(-1, {mib} << 20)
    for i in range(0, {mib} << 20, 4096):
        pages[i] = 1
    pages.close()

print(measure_peak(spike).peak_bytes)
"""


def _peak_of(code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@linux
@pytest.mark.parametrize("mib", [8, 64, 256])
def test_memory_touched_for_a_moment_is_measured_to_a_mebibyte(mib):
    assert abs(_peak_of(_SPIKE.format(mib=mib)) - mib * MIB) <= MIB


@linux
@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_the_parents_size_does_not_move_the_peak_of_a_worker(tmp_path, start_method):
    (tmp_path / "worker.py").write_text(
        "import mmap\n"
        "from attnbench.measure.memory import measure_peak\n"
        "def spike():\n"
        "    pages = mmap.mmap(-1, 8 << 20)\n"
        "    for i in range(0, 8 << 20, 4096):\n"
        "        pages[i] = 1\n"
        "    pages.close()\n"
        "def work(queue):\n"
        "    queue.put(measure_peak(spike).peak_bytes)\n"
    )
    (tmp_path / "parent.py").write_text(
        "import multiprocessing as mp, sys\n"
        "from worker import work\n"
        "if __name__ == '__main__':\n"
        "    ballast = bytes([1]) * (int(sys.argv[1]) << 20)\n"
        "    context = mp.get_context(sys.argv[2])\n"
        "    queue = context.SimpleQueue()\n"
        "    child = context.Process(target=work, args=(queue,))\n"
        "    child.start(); print(queue.get()); child.join()\n"
    )
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "parent.py", size, start_method],
                cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
            ).stdout
        )
        for size in ("0", "800")
    ]  # fmt: skip
    assert abs(peaks[1] - peaks[0]) <= 0.5 * MIB
    assert abs(peaks[0] - 8 * MIB) <= MIB


@linux
def test_what_existed_before_the_calls_does_not_count():
    code = """
    from attnbench.measure.memory import measure_peak
    inputs = bytes([1]) * (100 << 20)
    print(measure_peak(lambda: len(inputs)).peak_bytes)
    """
    assert _peak_of(code) <= MIB


@linux
def test_memory_that_an_arena_keeps_is_told_apart_from_the_peak():
    code = """
    from attnbench.measure.memory import measure_peak
    kept = []
    def call():
        if not kept:
            kept.append(bytes([1]) * (16 << 20))
        bytes([1]) * (32 << 20)
    peak = measure_peak(call)
    assert abs(peak.kept_bytes - (16 << 20)) < 2 << 20, peak
    print(peak.peak_bytes)
    """
    assert abs(_peak_of(code) - 48 * MIB) <= 2 * MIB


class FakeMeter(m.PeakMeter):
    """High-water marks from a list; resident bytes stay 100."""

    def __init__(self, peaks):
        super().__init__()
        self.peaks = [100, *peaks]  # the first reading is the trial before the calls

    def read_rss(self):
        return 100

    def read_peak(self):
        return self.peaks.pop(0)

    def reset_peak(self):
        pass


@pytest.mark.parametrize(
    ("peaks_mib", "calls"),
    [([5, 5, 5], 3), ([5, 6, 6, 6], 4), ([5, 5, 6, 6, 6], 5), ([5, 6, 7, 8, 8, 8], 6), ([1, 2, 3, 4, 5, 6], 6)],
)
def test_calls_go_on_until_two_in_a_row_leave_the_peak_unchanged(peaks_mib, calls):
    found = m.measure_peak(lambda: None, meter=FakeMeter([p * MIB for p in peaks_mib]))
    assert found.calls == calls
    assert found.peak_bytes == max(peaks_mib[:calls]) * MIB - 100


def test_the_first_call_is_timed_on_its_own():
    ticks = iter([1000, 1700])
    found = m.measure_peak(lambda: None, meter=FakeMeter([100] * 3), clock=lambda: next(ticks))
    assert found.first_call_ns == 700


def test_without_the_kernels_counters_bytes_are_empty_with_a_reason(tmp_path):
    calls = []
    found = m.measure_peak(lambda: calls.append(1), meter=m.PeakMeter(tmp_path / "no proc"))
    assert (found.peak_bytes, found.kept_bytes, found.baseline_bytes) == (None, None, None)
    assert "peak memory" in found.reason
    assert len(calls) == 1


def test_another_system_is_named_in_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MeasurementError, match="on Linux only, this is darwin"):
        m.PeakMeter(tmp_path / "none").read_rss()


def test_a_kernel_without_high_water_mark_is_named(tmp_path):
    (tmp_path / "status").write_text("VmRSS:\t 5 kB\n")
    meter = m.PeakMeter(tmp_path)
    assert meter.read_rss() == 5 * 1024
    with pytest.raises(MeasurementError, match="has no VmHWM"):
        meter.read_peak()


def _machine(tmp_path, *, cgroup_line, files):
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   80 kB\n")
    (tmp_path / "own").write_text(cgroup_line)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return m.available_memory_bytes(meminfo=tmp_path / "meminfo", cgroup_root=tmp_path / "cgroup", own=tmp_path / "own")


def test_available_memory_is_the_systems_without_a_limit(tmp_path):
    files = {"a/memory.max": "max\n", "a/memory.current": "5\n"}
    assert _machine(tmp_path, cgroup_line="0::/a\n", files=files) == 80 * 1024


def test_a_limit_of_a_parent_group_counts_and_page_cache_is_given_back(tmp_path):
    files = {
        "a/memory.max": "10000",
        "a/memory.current": "7000",
        "a/memory.stat": "anon 1\ninactive_file 500\n",
        "a/b/memory.max": "max",
        "a/b/memory.current": "1",
    }
    assert _machine(tmp_path, cgroup_line="0::/a/b\n", files=files) == 3500


def test_limits_of_the_older_control_groups_count(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": str(2**63 - 4096),
        "memory/memory.usage_in_bytes": "1",
        "memory/a/memory.limit_in_bytes": "9000",
        "memory/a/memory.usage_in_bytes": "1000",
    }
    assert _machine(tmp_path, cgroup_line="5:cpu:/z\n4:memory:/a\n", files=files) == 8000


def test_unknown_memory_is_none(tmp_path):
    assert m.available_memory_bytes(meminfo=tmp_path / "missing") is None
