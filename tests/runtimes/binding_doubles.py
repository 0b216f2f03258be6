"""Doubles of a binding's classes that know its real names and how many arguments each method takes.

The binding is compiled, so that `create_autospec` finds no signatures: they are read from its docstrings.
"""

import ctypes
import re
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

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(self._cls, name), property):
            return self._answers[name]
        allowed = arities(self._cls, name)

        def call(*arguments: Any) -> Any:
            if len(arguments) not in allowed:
                raise TypeError(f"{self._cls.__name__}.{name} takes {sorted(allowed)} arguments, got {len(arguments)}")
            self.calls.append((name, arguments))
            answer = self._answers.get(name)
            return answer(*arguments) if callable(answer) else answer

        return call


class HostEngine:
    """What runs an engine on the host: a subclass says how large outputs are, and computes them."""

    def __init__(self, trt: Any) -> None:
        self.trt = trt
        self.contexts: list[Double] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, int] = {}
        self.needs = 512  # bytes of a context's own memory

    def make_context(self, strategy: Any) -> Double:
        """A context that notes the shapes and addresses that it is given."""
        assert strategy == self.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = Double(
            self.trt.IExecutionContext,
            set_input_shape=lambda name, shape: self.shapes.update({name: shape}) is None,
            set_tensor_address=lambda name, place: self.places.update({name: place}) is None,
            set_optimization_profile_async=lambda index, stream: stream == HostDevice.stream,
            get_tensor_shape=lambda name: self.trt.Dims(self.shape_of(name)),
            update_device_memory_size_for_shapes=lambda: self.needs,
            execute_async_v3=self.execute,
        )
        self.contexts.append(context)
        return context

    def shape_of(self, name: str) -> tuple[int, ...]:
        """What the context says of a tensor."""
        raise NotImplementedError

    def execute(self, stream: int) -> bool:
        """One call."""
        raise NotImplementedError


class HostDevice:
    """A device whose memory is this process's."""

    stream = 7

    def __init__(self) -> None:
        self.held: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.captures = 0

    def allocate(self, size_bytes: int) -> int:
        memory = ctypes.create_string_buffer(max(1, size_bytes))
        self.held[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, place: int) -> None:
        del self.held[place]

    def upload(self, array: Any, place: int) -> None:
        ctypes.memmove(place, array.ctypes.data, array.nbytes)

    def download(self, place: int, array: Any) -> None:
        ctypes.memmove(array.ctypes.data, place, array.nbytes)

    def synchronize(self) -> None:
        pass

    def captured(self, enqueue: Any) -> Any:
        self.captures += 1
        return enqueue
