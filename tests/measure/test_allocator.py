import subprocess
import sys
import textwrap

import pytest

# 40 blocks of 4 MiB per call, as a block of attention allocates them; page faults and kept bytes of the tenth call.
CODE = """
import resource, sys
import numpy as np
from attnbench.measure import allocator
sys.stdout.write({"keep": allocator.keep_heap, "exact": allocator.exact_heap}[sys.argv[1]]() + "\\n")
def call():
    for _ in range(40):
        a = np.ones(1 << 19)
        b = np.ones(1 << 19)
for _ in range(9):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
call()
sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
@pytest.mark.parametrize(("state", "faults"), [("keep", range(50)), ("exact", range(40_000, 10**6))])
def test_a_kept_heap_faults_no_page_and_an_exact_one_faults_all_in_every_call(state: str, faults: range) -> None:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), state], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "threshold" in found[0]
    assert int(found[1]) in faults
