"""A model of the user in ONNX Runtime: any inputs and outputs, whose shapes the model itself decides."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbench.errors import UnsupportedError
from attnbench.interfaces import Array, Artifact, Settings, numpy_dtype
from attnbench.model_problem import ModelProblem
from attnbench_runtimes import binding
from attnbench_runtimes.ort_device import Buffers
from attnbench_runtimes.ort_loaded import KINDS, LoadedFile, Providers, raw


class OrtModelSession(LoadedFile):
    """A loaded file with its inputs bound in place; outputs lie where ONNX Runtime puts them, in every call again."""

    def __init__(self, runtime: Providers, problem: ModelProblem, artifact: Artifact, settings: Settings) -> None:
        super().__init__(runtime, problem, artifact, settings)
        self._problem = problem
        self._inputs: dict[str, Array] = {}  # bound values are bare pointers: these must outlive them
        self._io: Any = None

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy and bind the inputs."""
        from onnxruntime import OrtValue

        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        io = self._session.io_binding()
        kinds = self._problem.input_kinds()
        if self._settings.device != "cpu":
            return self._bind_on_device(io, own, {name: KINDS[kinds[name]] for name in own})
        for name, array in own.items():
            value = OrtValue.ortvalue_from_numpy_with_onnx_type(raw(array), KINDS[kinds[name]])
            io.bind_ortvalue_input(name, value)
        for name in self._problem.output_dims():
            io.bind_output(name)
        self._inputs, self._io = own, io
        return self._bound_call(io)

    def _bind_on_device(self, io: Any, own: Mapping[str, Array], elements: Mapping[str, int]) -> Callable[[], object]:
        """The same, where all outputs stay on the device."""
        if "bf16" in {spec.dtype for spec in self._problem.outputs}:
            raise UnsupportedError("onnxruntime does not hand bf16 outputs of a device to NumPy; use another dtype")
        self._buffers = Buffers(io, self._settings.device)
        for name, array in own.items():
            self._buffers.bind_input(name, array, elements[name])
        kind, _, index = self._settings.device.partition(":")
        for name in self._problem.output_dims():
            io.bind_output(name, kind, int(index))
        self._io = io
        return self._bound_call(io)

    def outputs_by_name(self) -> dict[str, Array]:
        """Every output of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        binding.require_ran(self._ran)
        return dict(zip(self._problem.output_dims(), map(_copied, self._io.get_outputs()), strict=True))


def _copied(value: Any) -> Array:
    """A copy of an OrtValue; of bfloat16 from its bytes, which ONNX Runtime does not hand to NumPy."""
    if value.data_type() != "tensor(bfloat16)":
        return np.array(value.numpy(), order="C", copy=True)
    shape = tuple(value.shape())
    bits = np.empty(shape, np.uint16)
    ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits.view(numpy_dtype("bf16"))
