"""What README shows is what the code prints."""

import re
import shlex
from pathlib import Path

import pytest

from attnbench import api, terminal

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_sample_table_is_what_the_sample_run_prints() -> None:
    shown = re.search(r"<!-- sample: .* -->\n```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    run = api.open_run(ROOT / "results" / "sample")
    printed = terminal.run_text(run, width=80, color=False, encoding="utf-8").replace(f"{ROOT}/", "")
    assert shown[1].strip() == printed.strip()


def test_every_file_that_is_linked_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", ["exporters", "runtimes"])
def test_every_plugin_is_named(name: str) -> None:
    from attnbench import plugins

    found = {"exporters": plugins.exporters, "runtimes": plugins.runtimes}[name]()
    builtin = [plugin.name for plugin in found.values() if plugin.builtin]
    assert builtin
    assert [plugin for plugin in builtin if f"`{plugin}`" not in README] == []


def test_the_opsets_are_those_that_the_exporters_declare() -> None:
    from attnbench.plugins import load_exporter

    assert load_exporter("onnx-decomposed").opsets == (20, 17, 18, 19, 21, 22, 23, 24, 25)
    assert load_exporter("onnx-contrib").opsets == (20, 17, 18, 19, 21, 22, 23, 24, 25)
    assert load_exporter("onnx-attention").opsets == (23, 24)
    assert load_exporter("onnx-blocked").opsets == (20, 18, 19, 21, 22, 23, 24, 25)


def test_the_commands_shown_are_commands() -> None:
    from attnbench.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    shown = {shlex.split(line)[1] for line in re.findall(r"`(attnbench \w[^`]*)`", README)}
    assert shown
    assert shown <= known
