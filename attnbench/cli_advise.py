"""`attnbench advise`: which arm for which request."""

import json
from typing import Annotated

import typer

from attnbench import flags
from attnbench.console import color, encoding, say, width
from attnbench.options import WHAT, Json, single


def advise(
    run_dir: Annotated[str, typer.Argument(help="A folder that bench made.", metavar="RUN_DIR", show_default=False)],
    workload: Annotated[
        str | None, single("--workload", help="CSV: seq_len,batch_size,count.", metavar="FILE", panel=WHAT)
    ] = None,
    max_latency_ms: Annotated[
        str | None, single("--max-latency-ms", help="Of every request.", metavar="MS", panel=WHAT)
    ] = None,
    max_memory: Annotated[
        str | None, single("--max-memory", help="Of every request, as 2GiB.", metavar="SIZE", panel=WHAT)
    ] = None,
    max_error: Annotated[
        str | None, single("--max-error", help="Of the worst row, as 1e-3.", metavar="ERROR", panel=WHAT)
    ] = None,
    max_profiles: Annotated[str, single("--max-profiles", help="Of a compiled engine.", metavar="N", panel=WHAT)] = "4",
    switch_ms: Annotated[
        str, single("--switch-ms", help="What changing the profile takes.", metavar="MS", panel=WHAT)
    ] = "0",
    as_json: Json = False,
) -> int:
    """Which arm for which batch size and T, under limits, with expected time and memory, and what is a toss-up.

    Exit code 3: there is a request that no arm can serve within the limits.
    """
    path = flags.parse_run_dir("RUN_DIR", run_dir)
    limits = {
        "max_latency_ms": flags.parse_positive("--max-latency-ms", max_latency_ms, example="20"),
        "max_error": flags.parse_positive("--max-error", max_error, example="1e-3"),
    }
    memory = flags.parse_size("--max-memory", max_memory)
    most = flags.parse_int("--max-profiles", max_profiles, minimum=1, maximum=64, example="4")
    switch = flags.parse_positive("--switch-ms", switch_ms, example="0.2", may_be_zero=True) or 0.0
    from attnbench import api
    from attnbench.report import advise_text
    from attnbench.report.section_text import sections_text

    found = api.advise(path, workload, **limits, max_memory_bytes=memory, max_profiles=most, switch_ms=switch)
    if as_json:
        say(json.dumps(advise_text.advice_as_dict(found.advices, found.profiles), indent=2))
    else:
        section = advise_text.advice_section(
            found.advices, found.limits, found.profiles, has_workload=found.has_workload
        )
        say(sections_text([section], width=width(), color=color(), encoding=encoding()))
    served = all(d.chosen is not None for a in found.advices for d in a.decisions)
    return 0 if served and found.advices else 3
