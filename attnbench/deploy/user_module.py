"""What a bundle of a module of the user is made from."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench import plugins
from attnbench.deploy import models, rtx
from attnbench.deploy.manifest import Check, Golden, Tensor
from attnbench.deploy.module_inputs import ModuleInputs, cases_of, read_inputs, shapes
from attnbench.deploy.shop import WITH_EXPORTERS, Shop
from attnbench.deploy.targets import Target
from attnbench.errors import ArtifactError, AttnbenchError, FrozenDimError, UnavailableError
from attnbench.model_problem import ModelProblem
from attnbench.sweep.bench import with_fix

_TASKS = "attnbench.deploy.module_tasks"
_PROGRAM = "program.pt2"  # beside the bundle's folder


class ModuleSource:
    """A torch.nn.Module of the user; see `attnbench.deploy.write.Source`.

    One worker imports the user's code, runs it on all cases and traces it; files are written from the trace.
    """

    problem: None = None
    max_len: None = None

    def __init__(
        self, module: str, inputs: Path, *, seed: int = 0, opset: int | None = None,
        gpu_archs: Sequence[str] = rtx.DEFAULT_ARCHS, external_bytes: int = models.EXTERNAL_BYTES,
    ) -> None:  # fmt: skip
        self.module, self.seed, self.opset, self.gpu_archs = module, seed, opset, tuple(gpu_archs)
        self._inputs_path, self._external_bytes = inputs, external_bytes
        self._inputs: ModuleInputs | None = None
        self._lock = threading.Lock()
        self._taken: dict[str, Any] | None = None
        self._failed: AttnbenchError | None = None

    @property
    def inputs(self) -> ModuleInputs:
        """What inputs.toml says.

        Raises:
            InputError: it cannot be read, or is wrong.
        """
        if self._inputs is None:
            self._inputs = read_inputs(self._inputs_path)
        return self._inputs

    def refuse(self) -> None:
        """Find what is wrong with inputs.toml before anything is made.

        Raises:
            InputError: it is.
        """
        cases_of(self.inputs)

    def _take(self, shop: Shop, folder: Path) -> dict[str, Any]:
        """What the worker with the user's code found, asked once.

        Raises:
            AttnbenchError: what is wrong with the module, with the line.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            if self._taken is None:
                try:
                    self._taken = shop.ask(
                        f"{_TASKS}:take", preload=WITH_EXPORTERS, module=self.module, seed=self.seed,
                        inputs=self.inputs.model_dump_json(by_alias=True), start=str(Path.cwd()), folder=str(folder),
                        program=str(folder.parent / _PROGRAM),
                    )  # fmt: skip
                except AttnbenchError as err:
                    self._failed = err
                    raise
            return self._taken

    def tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs; no outputs until the module has run."""
        inputs = tuple(
            Tensor(name=name, dtype=tensor.dtype, dims=tensor.dims, means=tensor.means)
            for name, tensor in self.inputs.inputs.items()
        )
        if self._taken is None:
            return inputs, ()
        specs = ModelProblem.from_dict(self._taken["problem"]).outputs
        return inputs, tuple(Tensor.model_validate({"name": s.name, "dtype": s.dtype, "dims": s.dims}) for s in specs)

    def write_golden(self, shop: Shop, folder: Path) -> tuple[Golden, ...]:
        """The cases in golden/."""
        return tuple(Golden(**case) for case in self._take(shop, folder)["golden"])

    def write_model(self, shop: Shop, target: Target, exporter: str, folder: Path) -> tuple[str, int | None]:
        """Write the model file into the folder; its name and its opset.

        Raises:
            AttnbenchError: unavailable, unsupported, or the named error of the export.
        """
        taken, program = self._take(shop, folder), folder.parent / _PROGRAM
        if target.kind == "pt2":
            (folder / models.PT2).write_bytes(program.read_bytes())
            return models.PT2, None
        if target.kind == "engine":
            rtx.require_builder()
        source, opset, preload = self._export(shop, exporter, taken, program)
        fields: dict[str, Any] = {"source": str(source), "folder": str(folder)}
        if target.kind == "engine":
            fields |= {"archs": self.gpu_archs, "profile": self.profile()}
            return shop.ask("attnbench.deploy.rtx:build_engines", preload=(rtx.MODULE,), **fields)["model"], opset
        if target.kind == "openvino-ir":
            return shop.ask("attnbench.deploy.models:write_ir", preload=("openvino",), **fields)["model"], opset
        fields["external_bytes"] = self._external_bytes
        return shop.ask("attnbench.deploy.models:settle_onnx", preload=preload, **fields)["model"], opset

    def _export(
        self, shop: Shop, exporter: str, taken: Mapping[str, Any], program: Path
    ) -> tuple[Path, int, tuple[str, ...]]:
        """The exporter's own file, beside the folder."""
        probe = plugins.probe_all("exporter", [exporter])[exporter]
        if not probe.available:
            raise UnavailableError(f"{exporter} cannot work here: {with_fix(probe)}")
        preload = tuple(probe.traits.get("preload", ())) if plugins.find("exporter", exporter).builtin else ()
        place = program.parent / f"export-{exporter}"
        place.mkdir()
        made = shop.ask(
            f"{_TASKS}:write", preload=preload, program=str(program), problem=taken["problem"], exporter=exporter,
            opset=self.opset, path=str(place / "made.onnx"),
        )  # fmt: skip
        return place / "made.onnx", made["opset"], preload

    def profile(self) -> dict[str, list[list[int]]]:
        """Input -> its least, usual and largest shape, for engines: tactics are chosen for the largest."""
        ranges = self.inputs.ranges
        least, most = ({name: getattr(r, end) for name, r in ranges.items()} for end in ("least", "most"))
        made = [shapes(self.inputs, sizes) for sizes in (least, most, most)]
        return {name: [list(sized[name]) for sized in made] for name in self.inputs.inputs}

    def check(self, shop: Shop, plan: Mapping[str, Any], opset: int | None, folder: Path) -> tuple[Check, ...]:
        """Sizes that the example did not show, constants of its length, dtypes, weights.

        Raises:
            AttnbenchError: the named error of the check that failed.
        """
        free = set(self.inputs.ranges)
        if any(isinstance(dim, str) and dim not in free for tensor in plan["outputs"] for dim in tensor["dims"]):
            detail = "an output has a size that is none of an input; the golden cases cover its shapes"
            return (Check(name="free sizes", result="not run", detail=detail),)
        found = shop.ask(
            f"{_TASKS}:check", preload=(plan["runtime"]["module"],), folder=str(folder), plan=plan, seed=self.seed,
            inputs=self.inputs.model_dump_json(by_alias=True), taken=self._take(shop, folder), opset=opset,
        )  # fmt: skip
        return tuple(Check(**check) for check in found["checks"])

    def wrong(self, sentence: str, faults: Sequence[str]) -> AttnbenchError:
        """Which sizes or values are at fault, and what helps."""
        names = {fault.partition(": ")[0].removeprefix("golden/").removesuffix(".npz") for fault in faults}
        if "example" in names:
            return ArtifactError(sentence)
        if all(name.startswith("rows-") for name in names):
            return ArtifactError(
                f"{sentence}; only the cases are wrong in which the first row of boolean inputs is all "
                f"{self._of_rows(sorted(names))}: take another --recipe, or write whole_rows = false in the inputs "
                "whose rows never are"
            )
        if all(name.startswith("least") for name in names):
            return FrozenDimError(
                f"{sentence}; only sizes of {min(r.least for r in self.inputs.ranges.values())} are wrong: the module "
                "decides by a size (as `if x.shape[1] > 1` does), and a trace keeps what the example decided; take the "
                "decision out of forward, or write min = 2 in [ranges]"
            )
        return FrozenDimError(
            f"{sentence}; at the sizes of the example {self.inputs.examples} it is right: one of them is in the file; "
            "take sizes from x.shape, and keep them out of int(), NumPy, lists and buffers"
        )

    def sentence(self) -> str:
        """What the model computes."""
        return f"`{self.module}`, a torch.nn.Module in eval mode."

    def notes(self) -> list[str]:
        """What a user of the file has to know beside its inputs."""
        assert self._taken is not None
        found = []
        if self.inputs.weights is None:
            found.append(f"The weights are what the constructor draws with torch.manual_seed({self.seed}): name yours "
                         "in inputs.toml (weights) before you serve it.")  # fmt: skip
        if self._taken["left_out"]:
            found.append("The module itself gives NaN where the first row of its boolean inputs is all "
                         f"{self._of_rows(self._taken['left_out'])}; that is not among the cases.")  # fmt: skip
        if self._taken["refuses_strides"]:
            found.append("The module itself refuses inputs that are not contiguous in memory (it calls view on them); "
                         "give contiguous ones.")  # fmt: skip
        if shared := self._taken["weights"]["shared"]:
            found.append(f"{shared} of the {self._taken['weights']['names']} weights are shared with another; the file "
                         "holds each once.")  # fmt: skip
        return found

    @staticmethod
    def _of_rows(cases: list[str]) -> str:
        return " or all ".join(name.removeprefix("rows-").capitalize() for name in cases)
