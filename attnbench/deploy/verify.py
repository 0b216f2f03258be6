"""`attnbench verify`: the checks of verify.py by our own code, in a worker, and torch of this machine beside.

Nothing of the bundle is executed but its model, and that only after its files were looked at.
"""

import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import attnbench
from attnbench.deploy import verify_bundle
from attnbench.deploy.manifest import MANIFEST, VERIFIER, Bundle, parse_manifest
from attnbench.deploy.shop import WITH_TORCH, Shop, open_shop
from attnbench.deploy.verify_runtimes import CANNOT_LOAD, CHANGED, DRIFTED, RIGHT, Fault, kinds_of, load, read_case
from attnbench.errors import (
    AttnbenchError,
    InputError,
    ReadBackError,
    UntrustedModelError,
    WorkerOutOfMemory,
    printable,
)
from attnbench.measure import environment
from attnbench.problem import Problem
from attnbench.untrusted import ModelFacts, inspect_ir, inspect_model, inspect_pt2, snapshot_files

_BEGINS = {RIGHT: "right", DRIFTED: "drifted", CHANGED: "changed", CANNOT_LOAD: "cannot load"}
_INSPECT: dict[str, Callable[[Path], object]] = {".onnx": inspect_model, ".xml": inspect_ir, ".pt2": inspect_pt2}
# Nobody can look into an engine; TensorRT-RTX loads none that holds code of the host unless it is told to.
_ENGINE = (".engine", "tensorrt_rtx")
# What bundles may set of a runtime; a `--option` of the user may be anything.
MAX_THREADS = 256
_COUNTS = ("threads", "INFERENCE_NUM_THREADS", "NUM_STREAMS")
_SETTINGS = {
    "onnxruntime": frozenset({"providers", "provider_options", "threads", "memory_pattern"}),
    "provider_options": frozenset({"use_tf32"}),
    "openvino": frozenset(
        {"device", "INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "NUM_STREAMS", "PERFORMANCE_HINT"}
    ),
    "torch": frozenset({"threads", "float32_matmul_precision"}),
    "tensorrt": frozenset({"tf32"}),
}


@dataclass(frozen=True, kw_only=True)
class CaseFound:
    """A golden case as it came out here."""

    file: str
    errors: Mapping[str, float]  # worst row by output
    limits: Mapping[str, float]
    faults: tuple[str, ...]
    torch_errors: Mapping[str, float] = field(default_factory=dict)  # of this machine's torch; empty: it was not run


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found; `exit_code` as verify.py's."""

    exit_code: int
    sentence: str
    cases: tuple[CaseFound, ...] = ()
    torch: str = ""  # its version, or why it was not run
    notes: tuple[str, ...] = ()  # what is no fault

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        cases = [{"file": c.file, "errors": dict(c.errors), "limits": dict(c.limits), "faults": list(c.faults),
                  "torch_errors": dict(c.torch_errors)} for c in self.cases]  # fmt: skip
        return {"exit_code": self.exit_code, "sentence": self.sentence, "torch": self.torch, "notes": list(self.notes),
                "cases": cases}  # fmt: skip

    def lines(self) -> list[str]:
        """A line for every case and a last one."""
        found = []
        for case in self.cases:
            parts = [f"{name} {error:.3g} of {case.limits[name]:.3g}" for name, error in case.errors.items()]
            parts += [f"torch here {name} {error:.3g}" for name, error in case.torch_errors.items()]
            found.append(
                f"{case.file}: {'WRONG: ' + '; '.join(case.faults) + '; ' if case.faults else ''}{', '.join(parts)}"
            )
        found += [f"torch here: {self.torch}"] if self.torch else []
        found += self.notes
        return [printable(line) for line in (*found, f"{_BEGINS[self.exit_code]}: {self.sentence}")]


def verify(
    folder: Path, *, options: Mapping[str, str] | None = None, memory_limit_bytes: int | None = None
) -> Verification:
    """Verify a bundle.

    Args:
        folder: the bundle; untrusted.
        options: settings of the runtime, before those of the bundle.
        memory_limit_bytes: of the worker that loads the model.

    Raises:
        InputError: there is no such folder, or the runtime has no such setting.
    """
    if not folder.is_dir():
        raise InputError(f"a bundle is a folder, {str(folder)!r} is none; name one that attnbench export made")
    try:
        bundle = check_files(folder)
    except Fault as err:
        return Verification(exit_code=err.code, sentence=str(err))
    with tempfile.TemporaryDirectory(prefix="attnbench-") as private, open_shop(memory_limit_bytes) as shop:
        try:
            copy = _private_copy(folder, bundle, Path(private))
            found = shop.ask(f"{__name__}:run_here", preload=(), folder=str(copy), options=dict(options or {}))
        except Fault as err:
            return Verification(exit_code=err.code, sentence=str(err))
        except InputError:
            raise
        except AttnbenchError as err:  # it crashed, hung or ran out of memory
            return Verification(exit_code=CANNOT_LOAD, sentence=_with_way_out(f"{bundle.model}: {err}", err))
        if found["fault"] is not None:
            return Verification(exit_code=CANNOT_LOAD, sentence=_with_way_out(found["fault"]))
        torch, torch_errors = _torch(shop, copy, bundle)
        claim = _claims(shop, copy, bundle)
        if claim is not None:
            return Verification(exit_code=CHANGED, sentence=claim, torch=torch)
        notes = (*_of_module(bundle), *verify_bundle.unlisted(folder, {"files": bundle.files}), *_of_script(copy))
    return replace(_verdict(bundle, found, torch, torch_errors), notes=notes)


def _with_way_out(text: str, err: AttnbenchError | None = None) -> str:
    """What to do where memory is what lacked."""
    if "out of memory" not in text and not isinstance(err, WorkerOutOfMemory):
        return text
    return f"{text}; a worker may have what --memory-limit says, raise it for a bundle that you trust"


def _of_module(bundle: Bundle) -> list[str]:
    """A line where what is expected cannot be made again: of a module, which the bundle has not."""
    if bundle.problem is not None:
        return []
    return [
        f"expected outputs and limits are the word of bundle.json: they were made by {bundle.module}, which is not in "
        "the bundle; where you have it, attnbench export --module makes them again"
    ]


def _of_script(folder: Path) -> list[str]:
    """A line where verify.py is another program than the one that this attnbench writes."""
    from attnbench.deploy.write import verifier

    if (folder / VERIFIER).read_bytes() == verifier().encode():
        return []
    return [f"{VERIFIER} is not the one that attnbench {attnbench.__version__} writes: run it if you trust who made it"]


def _private_copy(folder: Path, bundle: Bundle, private: Path) -> Path:
    """The files of the bundle where nobody else writes, looked at there: what is swapped later is not loaded.

    Raises:
        Fault: they are other files than a moment ago.
        InputError: there is no room for them.
    """
    copy = private / "bundle"
    try:
        snapshot_files(folder, (MANIFEST, *bundle.files), copy)
    except UntrustedModelError as err:
        raise Fault(CHANGED, str(err)) from err
    except OSError as err:
        raise InputError(
            f"the bundle cannot be copied to {str(private)!r}: {err.strerror}; set TMPDIR to a folder with room"
        ) from err
    if check_files(copy) != bundle:
        raise Fault(CHANGED, f"{MANIFEST} was changed while it was read; copy the bundle to where nobody writes")
    return copy


def _verdict(
    bundle: Bundle, found: Mapping[str, Any], torch: str, torch_errors: Mapping[str, dict[str, float]]
) -> Verification:
    """What the cases say."""
    cases = tuple(
        CaseFound(file=case["file"], errors=case["errors"], limits=case["limits"], faults=tuple(case["faults"]),
                  torch_errors=torch_errors.get(case["file"], {}))
        for case in found["cases"]
    )  # fmt: skip
    wrong = sum(bool(case.faults) for case in cases)
    if wrong:
        sentence = f"{wrong} of {len(cases)} cases are wrong in {bundle.runtime['distribution']} {found['version']}"
        return Verification(exit_code=DRIFTED, sentence=sentence, cases=cases, torch=torch)
    sentence = f"{len(cases)} cases in {bundle.runtime['distribution']} {found['version']}, errors within the limits"
    return Verification(exit_code=RIGHT, sentence=sentence, cases=cases, torch=torch)


def check_files(folder: Path) -> Bundle:
    """What the bundle says, after all of its files were looked at.

    Raises:
        Fault: a file is changed, missing or hostile.
    """
    checked = verify_bundle.read_checked(folder, with_model=False)
    try:
        bundle = parse_manifest(folder / MANIFEST, json.dumps(checked))
        suffix = Path(bundle.model).suffix
        inspect = _INSPECT.get(suffix)
        if inspect is not None:
            facts = inspect(folder / bundle.model)
            _refuse_other_data(bundle, facts)
        elif (suffix, bundle.runtime["module"]) != _ENGINE:
            raise Fault(CHANGED, f"{bundle.model!r} is no kind of model that can be looked at: {', '.join(_INSPECT)}")
    except InputError as err:
        raise Fault(CHANGED, str(err)) from err
    _refuse_settings(bundle)
    return bundle


def _refuse_other_data(bundle: Bundle, facts: object) -> None:
    """An ONNX model asks for no file that bundle.json does not list.

    Raises:
        Fault: it does.
    """
    for name in facts.files if isinstance(facts, ModelFacts) else ():
        if str(Path(bundle.model).parent / name) not in bundle.files:
            raise Fault(CHANGED, f"the model asks for the file {name!r}, which {MANIFEST} does not list")


def _refuse_settings(bundle: Bundle) -> None:
    """A setting may name a file to write or a library to load: only those that attnbench gives are handed on.

    Raises:
        Fault: another one.
    """
    settings = bundle.runtime["settings"]
    known = _SETTINGS.get(bundle.runtime["module"], frozenset())
    inner = {key for options in settings.get("provider_options", ()) for key in options}
    for key in (*(set(settings) - known), *(inner - _SETTINGS["provider_options"])):
        raise Fault(CHANGED, f"bundle.json sets {key!r} of {bundle.runtime['distribution']}, which no bundle needs")
    for key in set(settings) & set(_COUNTS):
        if type(settings[key]) is not int or not 1 <= settings[key] <= MAX_THREADS:
            raise Fault(CHANGED, f"bundle.json sets {key} to {settings[key]!r}; 1 to {MAX_THREADS} are taken")


def run_here(*, folder: str, options: dict[str, str]) -> dict[str, Any]:
    """In a worker: every case; {"cases": ..., "version": of the runtime, "fault": why it cannot be loaded, or None}.

    Raises:
        InputError: the runtime has no such setting.
    """
    bundle = verify_bundle.read_bundle(Path(folder))
    try:
        run = load(Path(folder), bundle, options)
        rows = [{"file": case["file"], "limits": case["limits"], "errors": errors, "faults": faults}
                for case, errors, faults in verify_bundle.run_cases(Path(folder), bundle, run)]  # fmt: skip
    except Fault as err:
        if err.code != CANNOT_LOAD:
            raise InputError(str(err)) from err
        return {"cases": [], "version": "", "fault": str(err)}
    version = getattr(importlib.import_module(bundle["runtime"]["module"]), "__version__", "of an unknown version")
    return {"cases": rows, "version": version, "fault": None}


def _torch(shop: Shop, folder: Path, bundle: Bundle) -> tuple[str, dict[str, dict[str, float]]]:
    """What torch of this machine computes of the same cases: what ran, and errors by case."""
    if bundle.problem is None or bundle.seed is None:
        return "not run: the bundle has outputs of a module, not the module", {}
    fields: dict[str, Any] = {"problem": bundle.problem, "seed": bundle.seed, "folder": str(folder)}
    try:
        found = shop.ask(f"{__name__}:torch_here", preload=WITH_TORCH, **fields)
    except AttnbenchError as err:
        return f"not run: {err}", {}
    return found["version"], found["errors"]


def _claims(shop: Shop, folder: Path, bundle: Bundle) -> str | None:
    """What bundle.json says and this attnbench does not find; None: nothing, or there is no torch to ask."""
    if bundle.problem is None or bundle.seed is None or importlib.util.find_spec("torch") is None:
        return None
    same_numpy = bundle.versions.get("numpy") == environment.versions(("numpy",)).get("numpy")
    fields: dict[str, Any] = {"problem": bundle.problem, "seed": bundle.seed, "folder": str(folder)}
    try:
        found = shop.ask(
            "attnbench.deploy.verify_claims:claims_here", preload=WITH_TORCH, same_numpy=same_numpy, **fields
        )
    except AttnbenchError as err:
        return f"what bundle.json claims cannot be made again: {err}"
    faults = found["faults"]
    more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"bundle.json claims what is not so: {faults[0]}{more}" if faults else None


def torch_here(*, folder: str, problem: dict[str, Any], seed: int) -> dict[str, Any]:
    """In a worker with torch: errors of its own block, with scaled_dot_product_attention, on every case.

    Raises:
        ReadBackError: the cases are not those of the problem.
    """
    import torch

    from attnbench.torch_model import build_module

    torch.set_num_threads(1)
    bundle = verify_bundle.read_bundle(Path(folder))
    module, kinds = (
        build_module(Problem.from_dict(problem), seed=seed, attention="sdpa"),
        kinds_of(bundle),
    )
    errors = {}
    for case in bundle["golden"]:
        inputs, shapes, expected = read_case(Path(folder), case)
        tensors = [torch.from_numpy(array) for array in inputs.values()]
        tensors = [t.view(torch.bfloat16) if kinds[n] == "bf16" else t for n, t in zip(inputs, tensors, strict=True)]
        with torch.inference_mode():
            found = module(*tensors)
        outputs = found if isinstance(found, tuple) else (found,)
        if [tuple(y.shape) for y in outputs] != list(shapes.values()):
            raise ReadBackError(f"{case['file']} has other outputs than the problem of bundle.json")
        pairs = zip(expected, outputs, strict=True)
        errors[case["file"]] = {n: verify_bundle.compare(y.double().numpy(), expected[n])[0] for n, y in pairs}
    return {"version": torch.__version__, "errors": errors}
