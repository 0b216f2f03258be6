"""What docs/ shows can be typed."""

import ast
import re
import shlex
from pathlib import Path

from attnbench.cli import app
from attnbench.report.metrics import OF_RUN

DOCS = Path(__file__).parents[1] / "docs"
CI = (DOCS / "ci.md").read_text(encoding="utf-8")


def options() -> dict[str, set[str]]:
    """Options of every command."""
    from typer.main import get_command

    group = get_command(app)
    return {name: {o for p in c.params for o in p.opts} for name, c in group.commands.items()}  # type: ignore[attr-defined]


def test_every_command_shown_has_these_flags() -> None:
    known = options()
    text = re.sub(r"\n    --", " --", CI)  # the folded lines of YAML
    lines = re.findall(r"^[\s-]*(attnbench (?:bench|diff|convert|report|fusion) .*)$", text, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        _, command, *words = shlex.split(line)
        assert {word for word in words if word.startswith("-")} <= known[command], line


def test_every_snippet_is_python() -> None:
    sources = re.findall(r"```python\n(.*?)```", CI, re.DOTALL)
    assert len(sources) >= 3
    assert all(ast.parse(source).body for source in sources)


def test_every_file_that_is_linked_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", CI) if "://" not in link]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_the_metrics_named_are_metrics() -> None:
    named = re.findall(r"^run/(\w+)$", CI, re.MULTILINE)
    assert {name for name in named if not name.startswith("cases_")} <= set(OF_RUN)
    assert len(named) == 3


def test_every_command_of_the_page_on_upgrades_has_these_flags() -> None:
    text = (DOCS / "upgrade.md").read_text(encoding="utf-8")
    known = options()["bench"]
    lines = re.findall(r"^attnbench bench (.*)$", text, re.MULTILINE)
    assert lines
    assert {word for line in lines for word in shlex.split(line) if word.startswith("--")} <= known
    assert all((DOCS / link).exists() for link in re.findall(r"\]\(([^)]+)\)", text))
