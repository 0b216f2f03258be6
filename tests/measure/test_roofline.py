"""Cost by hand, and the machine's peak measured in a child process."""

import subprocess
import sys

import pytest

from attnbench.errors import UnavailableError
from attnbench.measure import roofline as r
from attnbench.problem import Problem


def test_core_self_attention_costs_four_b_h_t_t_d():
    problem = Problem.make(part="core", seq_len=16, batch_size=2, num_heads=3, head_dim=8)
    assert r.flops(problem) == 4 * 2 * 3 * 16 * 16 * 8


def test_causal_attention_counts_half():
    full = Problem.make(part="core", variant="self", seq_len=16)
    causal = Problem.make(part="core", variant="causal", seq_len=16)
    assert r.flops(causal) * 2 == r.flops(full)


@pytest.mark.parametrize(("q_len", "kv_len", "pairs"), [(4, 16, 4 * 4 / 2), (16, 4, 4 * 4 / 2 + 12 * 4)])
def test_causal_attention_of_two_lengths_counts_the_triangle_and_the_whole_rows(q_len, kv_len, pairs):
    problem = Problem.make(part="core", variant="causal", seq_len=q_len, kv_len=kv_len, num_heads=3, head_dim=8)
    assert r.flops(problem) == 4 * 3 * pairs * 8


def test_a_cross_block_projects_queries_and_context_at_their_own_lengths():
    problem = Problem.make(variant="cross", seq_len=10, kv_len=4, num_heads=2, head_dim=8)
    attention = 4 * 2 * 10 * 4 * 8
    queries_and_output = 2 * (2 * 10 * 16 * 16)
    keys_and_values = 2 * (2 * 4 * 16 * 16)
    assert r.flops(problem) == attention + queries_and_output + keys_and_values


@pytest.mark.parametrize(("seq_len", "percent"), [(128, 11), (1024, 50), (4096, 80)])
def test_attention_is_the_stated_share_of_the_default_block(seq_len, percent):
    problem = Problem.make(seq_len=seq_len)
    share = 1 - r.projection_flops(problem) / r.flops(problem)
    assert round(100 * share) == percent


def test_least_bytes_read_inputs_and_weights_once_and_write_the_output_once():
    core = Problem.make(part="core", variant="cross", seq_len=10, kv_len=4, num_heads=2, head_dim=8, dtype="fp16")
    assert r.bytes_min(core) == 2 * (2 * 8) * (10 + 4 + 4 + 10)
    block = Problem.make(seq_len=10, num_heads=2, head_dim=8)
    assert r.bytes_min(block) == 4 * (10 * 16 + 4 * 16 * 16 + 10 * 16)


def test_more_than_the_peak_by_five_percent_beats_the_roofline():
    assert not r.beats_roofline(r.peak_fraction(105.0, 100.0))
    assert r.beats_roofline(r.peak_fraction(106.0, 100.0))


def test_an_unknown_peak_gives_no_fraction_and_no_flag():
    assert r.peak_fraction(5.0, None) is None
    assert not r.beats_roofline(None)


def test_the_best_candidate_is_the_machines_peak(monkeypatch):
    rates = {"slow": 1.0, "fast": 3.0, "middling": 2.0}
    monkeypatch.setattr(r, "peak_candidates", lambda dtype, threads: [r.Candidate(name=x, make=None) for x in rates])
    monkeypatch.setattr(r, "_best_gflops", lambda candidate, seconds: rates[candidate.name])
    assert r.measure_peak_flops("fp32", 1) == (3.0, "fast")


def test_a_dtype_that_no_library_multiplies_is_unavailable(monkeypatch):
    monkeypatch.setattr(r, "peak_candidates", lambda dtype, threads: [])
    with pytest.raises(UnavailableError, match="install torch"):
        r.measure_peak_flops("bf16", 1)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_candidate_multiplies_matrices_of_the_dtype_right(dtype):
    code = f"""
import warnings; warnings.simplefilter("error")
from attnbench.measure import roofline as r
import numpy as np
found = {{}}
for candidate in r.peak_candidates({dtype!r}, 1):
    product = candidate.make(64)()
    product = product[0] if isinstance(product, list) else product
    product = product.float().numpy() if hasattr(product, "float") else product
    found[candidate.name] = float(np.abs(product).mean())
print(sorted(found))
# entries are sums of 64 products of two normals: mean |N(0, 64)| = 8 sqrt(2/pi) = 6.38
assert all(5.5 < mean < 7.5 for mean in found.values()), found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.mm" in done.stdout


def test_bandwidth_counts_bytes_read_and_written(monkeypatch):
    ticks = iter(range(0, 10**12, 10**7))  # every copy takes 10 ms
    monkeypatch.setattr(r.time, "perf_counter_ns", lambda: next(ticks))
    monkeypatch.setattr(r, "_COPY_BYTES", 8 << 20)
    assert r.measure_bandwidth(2, seconds=0.0) == pytest.approx(2 * (8 << 20) / 1e7)


def test_the_bandwidth_of_this_machine_is_measured():
    assert 0.1 < r.measure_bandwidth(1, seconds=0.0) < 2000.0
