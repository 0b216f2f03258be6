"""Time and memory of `attnbench report` on 10,368 records: `make perf` prints it; nothing is asserted."""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.report.conftest import ARMS, default_records, write_run

SEQ_LENS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
PARTS, DTYPES, BATCH_SIZES = ("block", "core"), ("fp32", "fp16", "bf16"), (1, 2, 4, 8)


if __name__ == "__main__":
    records = [
        record
        for part in PARTS
        for dtype in DTYPES
        for batch_size in BATCH_SIZES
        for record in default_records(tuple(ARMS), part=part, dtype=dtype, batch_size=batch_size, seq_lens=SEQ_LENS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        run_dir.mkdir()
        write_run(run_dir, records)
        start = time.perf_counter()
        subprocess.run(
            [Path(sys.executable).with_name("attnbench"), "report", run_dir], check=True, capture_output=True
        )
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        html_mb = (run_dir / "report.html").stat().st_size / 1e6
    sys.stdout.write(
        f"attnbench report on {len(records)} records: {seconds:.1f} s (bar: 20 s), of them "
        f"{used.ru_utime + used.ru_stime:.1f} s on a processor, {used.ru_maxrss / 1024:.0f} MiB (bar: 1 GB), "
        f"report.html {html_mb:.1f} MB\n"
    )
