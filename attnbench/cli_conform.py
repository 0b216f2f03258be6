"""`attnbench conform`: what attention means in every exporter, opset and runtime at hand."""

import contextlib
import json
from typing import Annotated

from attnbench import arm_flags, flags
from attnbench.console import complain, note, say, width
from attnbench.errors import InputError
from attnbench.options import WHERE, Json, Lists, listed, single, switch


def conform(
    exporters: Annotated[Lists, listed("--exporters", help="See attnbench list.", default="all")] = None,
    runtimes: Annotated[
        Lists, listed("--runtimes", help="See attnbench list.", default="all but null and torch-compile")
    ] = None,
    opsets: Annotated[
        Lists, listed("--opsets", "--opset", help="Opsets, or all, or each exporter's first.", default="all")
    ] = None,
    out: Annotated[
        str | None,
        single("-o", "--out", help="New folder.", metavar="DIR", panel=WHERE, default="results/conform-DATE"),
    ] = None,
    as_json: Json = False,
    quiet: Annotated[bool, switch("-q", "--quiet", help="No progress.", panel=WHERE)] = False,
) -> int:
    """Probes with answers known by hand on every exporter x opset x runtime, and onnx's own cases: a matrix.

    A cell is conforms, differs (and how), refuses (the library's words) or unsupported (the plug-in's).
    Exit code 1: something differs. 3: nothing could run.
    """
    chosen = {
        "exporters": arm_flags.parse_plugins("--exporters", "exporter", exporters),
        "runtimes": arm_flags.parse_plugins("--runtimes", "runtime", runtimes),
    }
    wanted = opsets[0] if opsets in (["all"], ["first"]) else flags.parse_sizes("--opsets", opsets) or "all"
    folder = flags.make_out("conform", out)
    from attnbench.report import conform_page, conform_text, tables
    from attnbench.sweep.conform_run import conform as run

    try:
        matrix = run(**chosen, opsets=wanted, say=(lambda text: None) if quiet else note)
    except InputError:
        with contextlib.suppress(OSError):  # nothing ran: leave no empty folder behind
            folder.rmdir()
        raise
    found = matrix.as_dict()
    files = {
        "conform.csv": conform_text.matrix_csv(found["cells"]),
        "conform.json": json.dumps(found, indent=1, ensure_ascii=False),
        "conform.html": conform_page.matrix_page(found, title="What attention means here"),
    }
    for name, text in files.items():
        try:
            tables.write_text(folder / name, text)
        except OSError as err:
            complain(f"cannot write {str(folder / name)!r}: {err.strerror or err}; name another folder with --out")
            return 1
    if as_json:
        say(json.dumps({"folder": str(folder), "exit_code": matrix.exit_code, **found}, indent=2))
    else:
        say(conform_text.matrix_text(found, width=width()))
        say(f"\n{matrix.seconds:.0f} s; the page: {folder / 'conform.html'}")
    return matrix.exit_code
