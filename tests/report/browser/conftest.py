"""A headless browser that looks at reports, and a watch over everything that a page says or asks for."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnbench.report.build import build_report
from tests.report.browser.steps import DESKTOP, until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of this machine. Of one module: while its loop runs in this thread, no other test can run asyncio."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        reason = f"no browser: none of {', '.join(NAMES)} is on PATH; Debian, Ubuntu: apt install chromium"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a report and waits until its charts are drawn. Afterwards no page may have complained or fetched."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_report(path: Path, hash: str = "", *, wait: bool = True, script: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        contexts.append(context)
        page = context.new_page()
        if script:
            page.add_init_script(script)
        own = path.as_uri()

        def on_console(message: Any) -> None:
            if message.type in ("error", "warning"):
                complaints.append(f"{message.type}: {message.text}")

        def on_request(request: Any) -> None:
            # What a page makes itself and saves (blob:) is no request to anywhere.
            if request.url.split("#")[0] != own and not request.url.startswith("blob:"):
                complaints.append(f"request of {request.url[:200]}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: complaints.append(f"page error: {error}"))
        page.on("request", on_request)
        page.goto(own + hash)
        if wait:
            until(page, "page.isReady === true")
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def make_report(tmp_path_factory: pytest.TempPathFactory, lab: Any) -> Callable[..., Path]:
    """Writes a run and its report; few pictures unless `figures` says otherwise. Gives the page's path."""

    def make(records: list[Any], *, samples: bool = True, figures: int = 4, **manifest: Any) -> Path:
        folder = tmp_path_factory.mktemp("report") / "run"
        content = lab.write_run(folder, records, samples=samples, **manifest)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("attnbench.report.pictures.MAX_FIGURES", figures)
            files = build_report(folder, records, content, content["notices"])
        assert files.html is not None
        return files.html

    return make


@pytest.fixture(scope="module")
def wide(make_report: Callable[..., Path], lab: Any) -> Path:
    """Two variants in two dtypes, three arms, five T; one arm runs out of memory at the longest."""
    records = [
        r if (r.arm, r.q_len) != ("torch-eager", 2048) else lab.without_figures(r, "oom", "2.1 GiB were not there")
        for dtype in ("fp32", "bf16")
        for r in lab.default_records(
            ["torch-sdpa", "torch-eager", "onnx-attention@ort-cpu"], variants=("self", "causal"), dtype=dtype,
            seq_lens=(128, 256, 512, 1024, 2048),
        )
    ]  # fmt: skip
    return make_report(records)
