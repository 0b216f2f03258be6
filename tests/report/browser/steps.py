"""What tests of the page do again and again."""

from collections.abc import Callable
from typing import Any

DESKTOP, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}


def drawn(page: Any, action: Callable[[], Any]) -> None:
    """Do something, and wait until the charts have followed."""
    before = int(page.get_attribute("#explorer", "data-drawn") or 0)
    action()
    until(page, f"Number(document.getElementById('explorer').dataset.drawn) > {before}")


def until(page: Any, expression: str, timeout_s: float = 20.0) -> None:
    """Wait until JavaScript says true. Playwright's own wait needs eval in the page, which its policy forbids."""
    for _ in range(int(timeout_s / 0.02)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"not within {timeout_s} s: {expression}")


def shown(page: Any, selector: str) -> int:
    """How many elements of a selector are visible."""
    return int(page.locator(f"{selector}:visible").count())
