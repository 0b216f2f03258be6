"""What a person sees while a run goes on. Redrawn only between visits, never by a thread."""

import time
from collections.abc import Callable
from typing import Any, Protocol


class Progress(Protocol):
    """Told by the runner; never called while a sample runs."""

    def start(self, total_s: float) -> None:
        """The run begins; total_s is predicted."""
        ...

    def say(self, text: str) -> None:
        """What is being done now."""
        ...

    def advance(self, done_s: float, eta_s: float) -> None:
        """A group has ended: predicted seconds of work done so far, seconds left."""
        ...

    def skip(self, reason: str) -> None:
        """The next group will not be run; `advance` follows all the same."""
        ...

    def stop(self) -> None:
        """The run has ended."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, total_s: float) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def advance(self, done_s: float, eta_s: float) -> None:
        """Nothing."""

    def skip(self, reason: str) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Lines:
    """One plain line per finished group, and one for all that were skipped: for logs and pipes."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._total_s = 0.0
        self._text = ""
        self._skips: dict[str, int] = {}
        self._is_skipped = False

    def start(self, total_s: float) -> None:
        """Remember the total."""
        self._total_s = total_s

    def say(self, text: str) -> None:
        """Keep it for the next line."""
        self._text = text

    def advance(self, done_s: float, eta_s: float) -> None:
        """Write a line, unless the group was skipped."""
        if self._is_skipped:
            self._is_skipped = False
            return
        share = done_s / self._total_s if self._total_s else 1.0
        self._write(f"{min(share, 1.0):4.0%}  {self._text.split(': ')[0]} done, about {_clock(eta_s)} left")

    def skip(self, reason: str) -> None:
        """Count it for the last line."""
        self._is_skipped = True
        self._skips[reason] = self._skips.get(reason, 0) + 1

    def stop(self) -> None:
        """Say how many problems were skipped."""
        for reason, count in self._skips.items():
            self._write(f"{count} problem{'' if count == 1 else 's'} skipped: {reason}")
        self._skips.clear()


class Bar:
    """A bar with the present step and the time left, redrawn at most ten times a second."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("ETA {task.fields[eta]}"),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task: Any = None
        self._drawn = 0.0

    def start(self, total_s: float) -> None:
        """Draw the empty bar."""
        self._bar.start()
        self._task = self._bar.add_task("starting", total=max(total_s, 0.001), eta=_clock(total_s))
        self._bar.refresh()

    def say(self, text: str) -> None:
        """Change the description; drawn when the last drawing is 0.1 s old."""
        if self._task is None:
            return
        self._bar.update(self._task, description=text)
        if time.monotonic() - self._drawn > 0.1:
            self._drawn = time.monotonic()
            self._bar.refresh()

    def advance(self, done_s: float, eta_s: float) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.update(self._task, completed=done_s, eta=_clock(eta_s))
            self._bar.refresh()

    def skip(self, reason: str) -> None:
        """Nothing: the table at the end has every reason."""

    def stop(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02d}"
