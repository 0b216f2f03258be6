"""What competes in a sweep: exporter x runtime x settings."""

from dataclasses import dataclass

from attnbench import interpreters
from attnbench.model_problem import AnyProblem
from attnbench.problem import digest
from attnbench.sweep import runtime_options

TORCH = "torch"  # the "exporter" of runtimes that run the torch block itself


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What competes: exporter x runtime x settings."""

    exporter: str  # "torch" for runtimes that run the torch block
    runtime: str  # with the path of its interpreter, where that is not ours: "ort-cpu@/opt/ort131/bin/python"
    opset: int | None = None  # as asked; None: the exporter's default
    options: runtime_options.Options = ()
    compiles_only: bool = False  # here: its runtime compiles and cannot run
    on_gpu: bool = False  # here; what plans go by
    is_alone: bool = False  # here: its workers have their GPU one at a time
    interpreter: tuple[str, str] | None = None  # not ours: name of the environment, version of the runtime in it

    @property
    def plugin(self) -> str:
        """The runtime without its interpreter: what a worker loads."""
        return interpreters.base(self.runtime)

    @property
    def label(self) -> str:
        """`onnx-attention[opset=24]@ort-cpu`, `torch-sdpa[backend=math]`, `ort-cpu[ort131=1.31.1]`."""
        return self._named(self.plugin, (*([self.interpreter] if self.interpreter else []), *self.options))

    @property
    def asked(self) -> str:
        """The label as it may be typed before the version is known: `onnx-attention@ort-cpu@/opt/x/bin/python`."""
        return self._named(self.runtime, self.options)

    def _named(self, name: str, said: runtime_options.Options) -> str:
        options = ";".join(f"{name}={value}" for name, value in said)
        runtime = f"{name}[{options}]" if options else name
        if self.exporter == TORCH:
            return runtime
        return f"{self.exporter}{f'[opset={self.opset}]' if self.opset else ''}@{runtime}"

    def case_id(self, problem: AnyProblem) -> str:
        """12 hex digits that depend on the problem and the arm, not on versions or the machine."""
        return digest({"problem": problem.as_dict(), "arm": self.label})
