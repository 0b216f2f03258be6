"""Optimisation profiles for a workload: into how many ranges of T, and where to cut.

A compiled engine has profiles [min, opt, max]; its memory and, where requests are padded to the profile, its time
follow the max. Cutting the lengths of a workload into few ranges that waste little is exact dynamic programming.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One range of T. opt is the length on which the workload spends most of its time within the range."""

    minimum: int
    opt: int
    maximum: int


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The best cut into a number of ranges."""

    profiles: tuple[Profile, ...]
    padding: float  # expected time of padding as a fraction of the workload's time without it
    switching: float  # expected time of switching profiles between requests, likewise


def partitions(
    counts: Mapping[int, float], cost: Callable[[int], float], *, most: int, switch_cost: float = 0.0
) -> list[Partition]:
    """The best partition for every number of profiles from 1 to `most` (fewer where there are fewer lengths).

    Args:
        counts: requests by T.
        cost: time of one request at T; it must not fall with T.
        most: the largest number of profiles.
        switch_cost: time of a change of profile between two requests, which come in independent order.
    """
    lengths = sorted(t for t, n in counts.items() if n > 0)
    total = sum(counts[t] for t in lengths)
    spent = sum(counts[t] * cost(t) for t in lengths)
    if not lengths or spent <= 0.0:
        return []
    found = []
    for bounds in _best_cuts(lengths, counts, cost, min(most, len(lengths)), switch_cost):
        ranges = [lengths[a:b] for a, b in bounds]
        padding = sum(counts[t] * (cost(part[-1]) - cost(t)) for part in ranges for t in part)
        stays = sum((sum(counts[t] for t in part) / total) ** 2 for part in ranges)
        profiles = tuple(
            Profile(minimum=part[0], opt=max(part, key=lambda t: (counts[t] * cost(t), t)), maximum=part[-1])
            for part in ranges
        )
        switching = switch_cost * (1.0 - stays) * total
        found.append(Partition(profiles=profiles, padding=padding / spent, switching=switching / spent))
    return found


def _best_cuts(
    lengths: Sequence[int], counts: Mapping[int, float], cost: Callable[[int], float], most: int, switch_cost: float
) -> list[list[tuple[int, int]]]:
    """For every number of ranges the cuts [a, b) with the least padding and switching.

    The switching of a partition is switch_cost x total x (1 - sum of squared shares), a sum over ranges like the
    padding, so one table serves both.
    """
    n = len(lengths)
    number = np.array([counts[t] for t in lengths])
    each = np.array([cost(t) for t in lengths])
    requests = np.concatenate([[0.0], np.cumsum(number)])  # of the first i lengths
    spent = np.concatenate([[0.0], np.cumsum(number * each)])
    least = np.full((most + 1, n + 1), np.inf)  # (ranges, lengths covered) -> waste
    start = np.zeros((most + 1, n + 1), dtype=np.int64)  # of the last range
    least[0, 0] = 0.0
    for b in range(1, n + 1):
        inside = requests[b] - requests[:b]  # of the range [a, b) for every a
        waste = inside * each[b - 1] - (spent[b] - spent[:b]) - switch_cost * inside**2 / requests[n]
        for k in range(1, min(most, b) + 1):
            options = least[k - 1, :b] + waste
            start[k, b] = int(np.argmin(options))
            least[k, b] = options[start[k, b]]
    cuts = []
    for k in range(1, most + 1):
        bounds, b = [], n
        for ranges in range(k, 0, -1):
            a = int(start[ranges, b])
            bounds.append((a, b))
            b = a
        cuts.append(bounds[::-1])
    return cuts


def recommended(found: Sequence[Partition], tolerated: float = 0.05) -> Partition | None:
    """The fewest profiles that waste at most `tolerated` of the time; else those that waste least."""
    enough = [p for p in found if p.padding + p.switching <= tolerated]
    return enough[0] if enough else min(found, key=lambda p: p.padding + p.switching, default=None)
