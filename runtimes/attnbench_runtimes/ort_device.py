"""Inputs and outputs of an ONNX Runtime session in the memory of a device, bound there once."""

from typing import Any

import numpy as np

from attnbench.interfaces import Array
from attnbench_runtimes.ort_loaded import raw


class Buffers:
    """What an IO binding points at: a place on the device for every array, which must outlive the binding.

    An array that is bound twice (a cache that a step writes in place) has one place. ONNX Runtime does not take
    bfloat16 from NumPy, so it is told the type with the address: bytes are copied as uint16.
    """

    def __init__(self, io: Any, device: str) -> None:
        """device: `cuda:0`; `cpu` is its own memory, through the same calls."""
        self._io = io
        kind, _, index = device.partition(":")
        self._device = (kind, int(index or 0))
        self._places: dict[int, Any] = {}  # id of an array -> its OrtValue on the device
        self._arrays: dict[str, Array] = {}

    def bind_input(self, name: str, array: Array, element: int, *, on_host: bool = False) -> None:
        """Copy an array to the device and bind it; `element` is its onnx.TensorProto.DataType."""
        device = ("cpu", 0) if on_host else self._device
        place = self._place(name, array, device)
        self._io.bind_input(name, *device, element, array.shape, place.data_ptr())

    def bind_output(self, name: str, array: Array, element: int) -> None:
        """Bind a place on the device as large as the array."""
        place = self._place(name, array, self._device)
        self._io.bind_output(name, *self._device, element, array.shape, place.data_ptr())

    def read(self, name: str) -> Array:
        """A copy of what lies on the device now, in the dtype of the array that was bound."""
        array = self._arrays[name]
        copied = np.array(self._places[id(array)].numpy(), order="C", copy=True)
        return copied.view(array.dtype).reshape(array.shape)

    def _place(self, name: str, array: Array, device: tuple[str, int]) -> Any:
        from onnxruntime import OrtValue

        self._arrays[name] = array
        if id(array) not in self._places:
            self._places[id(array)] = OrtValue.ortvalue_from_numpy(raw(array), *device)
        return self._places[id(array)]
