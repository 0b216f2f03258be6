from collections.abc import Iterator

import pytest

from attnbench import selftest
from attnbench.measure import environment
from attnbench.sweep.workers import ForkServers


@pytest.fixture(scope="module")
def servers() -> Iterator[ForkServers]:
    env, _ = environment.scrubbed_environment(1)
    with ForkServers(env) as found:
        yield found


def test_a_spike_of_a_millisecond_is_measured_to_a_mebibyte(servers: ForkServers) -> None:
    checks = selftest._spikes(servers)
    assert [check.ok for check in checks] == [True] * len(selftest.SPIKES_MIB), checks


def test_the_same_code_is_compared_and_contention_counted(
    servers: ForkServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "TRIALS", 2)
    monkeypatch.setattr(selftest, "AA_PROBLEM", selftest.SHORT_PROBLEM)
    excluding, worst, contended = selftest._same_code(servers)
    assert int(excluding.measured) in (0, 1, 2)
    assert worst.measured.endswith("%")
    assert int(contended.measured) in (0, 1, 2)


def test_the_table_fits_eighty_columns_and_one_missed_bar_fails() -> None:
    good = selftest.Check(name="A/A at T=512, 60 trials: exclude 1", measured="3", bar="<= 6", ok=True)
    bad = selftest.Check(name="worst", measured="3.10%", bar="<= 2 %", ok=False)
    info = selftest.Check(name="peak", measured="90 GFLOP/s", bar="torch.mm", ok=None)
    result = selftest.Result(checks=[good, bad, info], seconds=3.0)
    assert result.exit_code == 1
    assert "FAILED" in result.text()
    assert max(map(len, result.text().splitlines())) <= 80
    assert selftest.Result(checks=[good, info], seconds=3.0).exit_code == 0
