"""A model of the user in OpenVINO: any inputs and outputs, whose shapes the model itself decides."""

from collections.abc import Callable, Mapping

import numpy as np

from attnbench.inputs import make_inputs
from attnbench.interfaces import Array, Artifact, Settings, numpy_dtype
from attnbench.model_problem import ModelProblem
from attnbench_runtimes import binding
from attnbench_runtimes.openvino_loaded import CompiledFile, tensor_on


class OpenVinoModelSession(CompiledFile):
    """A compiled model whose inputs are set once per bind; outputs lie where OpenVINO puts them."""

    def __init__(self, problem: ModelProblem, artifact: Artifact, settings: Settings) -> None:
        super().__init__(artifact, settings, problem.dtype)
        self._problem = problem
        self._inputs: dict[str, Array] = {}  # the request holds bare pointers: these must outlive it
        self._is_primed = False
        self._has_run = False

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs and set them as the request's tensors."""
        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        self._prime(own)
        self._set_tensors(own)
        self._inputs = own  # what was bound before is let go only now
        return self._inferring()

    def _prime(self, own: Mapping[str, Array]) -> None:
        """Keep the first inference from being one with T = 1, as `openvino.OpenVinoSession` does and says why."""
        dims = zip(self._problem.input_dims().values(), own.values(), strict=True)
        sizes = {dim: size for names, array in dims for dim, size in zip(names, array.shape, strict=True)}
        if not self._has_run and sizes.get(self._problem.bound or "") == 1:
            free = {dim: size for dim, size in sizes.items() if isinstance(dim, str)}
            assert self._problem.bound is not None
            small = make_inputs(self._problem.at({**free, self._problem.bound: 2}))
            self._set_tensors(small)
            self._request.infer(share_outputs=True)
            self._is_primed = True
        self._has_run = True

    def _set_tensors(self, own: Mapping[str, Array]) -> None:
        kinds = self._problem.input_kinds()
        for name, array in own.items():
            self._request.set_tensor(name, tensor_on(array, kinds[name]))

    def outputs_by_name(self) -> dict[str, Array]:
        """Every output of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        import openvino as ov

        binding.require_ran(self._ran)
        found = {}
        for name in self._problem.output_dims():
            tensor = self._request.get_tensor(name)
            array = np.array(tensor.data, order="C", copy=True)
            # NumPy has no bfloat16 of its own: openvino hands the bits out as another type
            found[name] = array.view(numpy_dtype("bf16")) if tensor.element_type == ov.Type.bf16 else array
        return found

    def _more_facts(self) -> dict[str, bool]:
        return {"primed_with_two_keys": self._is_primed}
