"""Doubles of a binding's classes that know its real names and how many arguments each method takes.

The binding is compiled, so that `create_autospec` finds no signatures: they are read from its docstrings.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest


def rtx() -> Any:
    """The real module, or a skip."""
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


def arities(cls: type, name: str) -> set[int]:
    """How many arguments a method may be given, itself not counted, over all its overloads.

    Raises:
        AttributeError: the class has no such member.
    """
    found: set[int] = set()
    for text in re.findall(rf"\b{name}\((self[^\n]*)\) ->", getattr(cls, name).__doc__ or ""):
        arguments = re.split(r", (?=\w+: )", text)[1:]
        least = sum(" = " not in argument for argument in arguments)
        found |= set(range(least, len(arguments) + 1))
    return found


class Double:
    """An object of a real class: what the class lacks is an AttributeError, a wrong number of arguments a TypeError.

    `answers`: method or attribute -> what it gives, or a function that computes it. `calls` has every call.
    """

    def __init__(self, cls: type, **answers: Any) -> None:
        for name in answers:
            getattr(cls, name)  # a double may only answer to real names
        self._cls, self._answers = cls, answers
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        allowed = arities(self._cls, name)

        def call(*arguments: Any) -> Any:
            if len(arguments) not in allowed:
                raise TypeError(f"{self._cls.__name__}.{name} takes {sorted(allowed)} arguments, got {len(arguments)}")
            self.calls.append((name, arguments))
            answer = self._answers.get(name)
            return answer(*arguments) if callable(answer) else answer

        return call
