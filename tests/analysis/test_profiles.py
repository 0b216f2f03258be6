"""The partition into profiles is the best there is."""

import itertools

import numpy as np
import pytest

from attnbench.analysis.profiles import Profile, partitions, recommended


def cost(t: int) -> float:
    return 0.1 + 0.02 * t + 2e-5 * t * t


def brute_force(counts: dict[int, float], profiles: int, switch_cost: float) -> float:
    """The least waste of any cut into so many ranges, in units of the workload's own time."""
    lengths, total = sorted(counts), sum(counts.values())
    spent = sum(counts[t] * cost(t) for t in lengths)
    best = float("inf")
    for cuts in itertools.combinations(range(1, len(lengths)), profiles - 1):
        edges = [0, *cuts, len(lengths)]
        ranges = [lengths[a:b] for a, b in itertools.pairwise(edges)]
        padding = sum(counts[t] * (cost(part[-1]) - cost(t)) for part in ranges for t in part)
        shares = [sum(counts[t] for t in part) / total for part in ranges]
        switching = (
            sum(a * b for i, a in enumerate(shares) for j, b in enumerate(shares) if i != j) * switch_cost * total
        )
        best = min(best, (padding + switching) / spent)
    return best


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("switch_cost", [0.0, 0.5, 5.0])
def test_every_partition_equals_brute_force(seed: int, switch_cost: float) -> None:
    rng = np.random.default_rng(seed)
    counts = {int(t): float(rng.integers(1, 50)) for t in rng.choice(4000, size=8, replace=False) + 1}
    found = partitions(counts, cost, most=5, switch_cost=switch_cost)
    assert len(found) == 5
    for k, partition in enumerate(found, 1):
        assert len(partition.profiles) == k
        assert partition.padding + partition.switching == pytest.approx(brute_force(counts, k, switch_cost), abs=1e-9)


def test_two_clusters_are_two_profiles_with_opt_where_the_time_goes() -> None:
    found = partitions({100: 5.0, 120: 50.0, 4000: 3.0, 4096: 30.0}, cost, most=3)
    assert found[1].profiles == (
        Profile(minimum=100, opt=120, maximum=120),
        Profile(minimum=4000, opt=4096, maximum=4096),
    )
    chosen = recommended(found)
    assert chosen is not None
    assert len(chosen.profiles) == 2


def test_one_length_needs_one_profile_and_wastes_nothing() -> None:
    (only,) = partitions({512: 9.0}, cost, most=4, switch_cost=3.0)
    assert (only.padding, only.switching) == (0.0, 0.0)
    assert only.profiles == (Profile(minimum=512, opt=512, maximum=512),)


def test_dear_switching_asks_for_fewer_profiles() -> None:
    counts = {128: 10.0, 256: 10.0, 512: 10.0, 4096: 10.0}
    cheap = min(partitions(counts, cost, most=4), key=lambda p: p.padding + p.switching)
    dear = min(partitions(counts, cost, most=4, switch_cost=1e4), key=lambda p: p.padding + p.switching)
    assert (len(cheap.profiles), len(dear.profiles)) == (4, 1)


def test_thousands_of_lengths_are_cut_too() -> None:
    found = partitions(dict.fromkeys(range(1, 3001), 1.0), cost, most=3)
    assert [len(p.profiles) for p in found] == [1, 2, 3]
    assert found[0].padding > found[1].padding > found[2].padding


def test_an_empty_workload_has_no_profiles() -> None:
    assert partitions({}, cost, most=3) == []
    assert recommended([]) is None
