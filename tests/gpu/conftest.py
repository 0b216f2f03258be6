"""What the tests of a GPU need: `make gpu-check` runs them with `pytest -m gpu`; without a GPU all are skipped."""

import pytest

from attnbench_runtimes import cuda_driver


@pytest.fixture(scope="session")
def device() -> str:
    """The first CUDA device; skips where no GPU can be used."""
    if why := cuda_driver.why_no_gpu():
        pytest.skip(f"needs a GPU: {why}")
    return cuda_driver.devices()[0]
