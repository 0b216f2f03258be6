"""Making a bundle: model, golden cases, proof, then bundle.json, and only then its name."""

import inspect
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import attnbench
from attnbench.deploy import place, recipes, triton, verify_begin, verify_bundle, verify_runtimes
from attnbench.deploy.golden import ranges_of
from attnbench.deploy.manifest import (
    MANIFEST,
    VERIFIER,
    Bundle,
    Check,
    Golden,
    Recipe,
    Tensor,
    describe,
    write_manifest,
)
from attnbench.deploy.readme import readme
from attnbench.deploy.shop import Shop, open_shop
from attnbench.deploy.targets import TARGETS, Target
from attnbench.errors import ArtifactError, AttnbenchError, InputError, UnsupportedError
from attnbench.measure import environment
from attnbench.problem import Problem

AUTO, DOCUMENTED = "auto", "documented"
README = "README.md"
_VERSIONS = ("attnbench", "numpy", "torch", "onnx", "onnxscript", "onnxruntime")
_IMPORT = re.compile(r"^from attnbench\.deploy\.verify_runtimes import (\([^)]*\)|[^\n]*)\n", re.MULTILINE)


class Source(Protocol):
    """What a bundle is made from: the built-in attention, or a module of the user."""

    @property
    def problem(self) -> Problem | None:
        """Of the built-in attention; None: a module."""
        ...

    @property
    def max_len(self) -> int | None:
        """The largest T of the built-in attention that is proved; None: a module, which has ranges."""
        ...

    @property
    def module(self) -> str | None:
        """package.module:Class of a module."""
        ...

    @property
    def opset(self) -> int | None:
        """As asked; None: the exporter's first."""
        ...

    @property
    def seed(self) -> int:
        """Of weights that are drawn."""
        ...

    def refuse(self) -> None:
        """Raise for what is wrong before anything is made."""
        ...

    def tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs of the model."""
        ...

    def write_golden(self, shop: Shop, folder: Path) -> tuple[Golden, ...]:
        """Write golden/*.npz into the folder."""
        ...

    def write_model(self, shop: Shop, target: Target, exporter: str, folder: Path) -> tuple[str, int | None]:
        """Write the model into the folder, scratch beside it; the file's name and its opset."""
        ...

    def check(self, shop: Shop, plan: Mapping[str, Any], opset: int | None, folder: Path) -> tuple[Check, ...]:
        """What `checks` finds: sizes that the example did not show, constants of its length, dtypes, weights.

        Args:
            shop: of workers.
            plan: what bundle.json will say of runtime, model, inputs, outputs and golden cases.
            opset: that was asked; None: the model is no ONNX file.
            folder: that is to become the bundle.

        Raises:
            AttnbenchError: the named error of the check that failed.
        """
        ...

    def wrong(self, sentence: str, faults: Sequence[str]) -> AttnbenchError:
        """The error for a model that some golden cases find wrong: the sentence, and what is to be done.

        Args:
            sentence: which recipe, where, and the first fault.
            faults: `golden/NAME.npz: what is wrong` of every case.
        """
        ...

    def sentence(self) -> str:
        """What the model computes."""
        ...

    def notes(self) -> list[str]:
        """What its user has to know beside the inputs."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Proof:
    """A model that was found right."""

    model: str
    recipe: Recipe
    golden: tuple[Golden, ...]
    checks: tuple[Check, ...]
    conformance: tuple[dict[str, Any], ...]


def write_bundle(
    source: Source,
    target: Target,
    out: Path,
    *,
    recipe: str = DOCUMENTED,
    with_triton: bool = False,
    choose: Callable[[], list[Recipe]] | None = None,
    memory_limit_bytes: int | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Bundle:
    """Make a bundle at `out`: whole and proved, or not at all.

    Args:
        source: what is shipped.
        target: where it is to run.
        out: the folder; a bundle that is there is replaced.
        recipe: an exporter's name; `documented`: the best of the target that is right, untimed; `auto`: the fastest
            of those that are right.
        choose: times the recipes of what is no built-in attention, for `auto`; None: they are not timed.
        with_triton: add a model repository of Triton Inference Server.
        memory_limit_bytes: of one worker.
        say: told what goes on.

    Raises:
        InputError: a wrong value, or `out` holds something else.
        AttnbenchError: unavailable, unsupported, or the named error of the check that failed.
        OSError: the disk is full.
    """
    source.refuse()
    if with_triton:
        triton.require_backend(target)
        triton.refuse_dtypes(tensor for tensors in source.tensors() for tensor in tensors)
    offered = recipes_to_try(source, target, recipe, say, choose)
    with place.replacing(out) as folder, open_shop(memory_limit_bytes) as shop:
        shop.warm_up(*([(proving_runtime(target, source)["module"],)] if can_prove(target) else []))
        with ThreadPoolExecutor(max_workers=1) as pool:
            cases = pool.submit(source.write_golden, shop, folder)
            proof = _first_right(source, target, offered, shop, folder, cases.result, say)
        return _finish(source, target, _with_triton(source, target, proof, folder) if with_triton else proof, folder)


def _with_triton(source: Source, target: Target, proof: _Proof, folder: Path) -> _Proof:
    """The proof with what was not proved: the model repository that is written here."""
    name = f"attention_{source.problem.variant}" if source.problem else str(source.module).rpartition(":")[2]
    made = triton.write_repository(folder, target, proof.model, *source.tensors(), ranges_of(proof.golden), name)
    detail = f"{made.relative_to(folder).as_posix()} is written by the documentation; no server was run"
    return replace(proof, checks=(*proof.checks, Check(name="Triton", result="not run", detail=detail)))


def recipes_to_try(
    source: Source,
    target: Target,
    recipe: str,
    say: Callable[[str], object],
    choose: Callable[[], list[Recipe]] | None = None,
) -> list[Recipe]:
    """The recipes to try, in order.

    Raises:
        InputError: one that the target does not have.
    """
    known = (DOCUMENTED, AUTO, *target.recipes)
    if recipe not in known:
        raise InputError(f"target {target.name} has no recipe {recipe!r}; it has {', '.join(known)}")
    if not target.recipes:
        reason = f"{target.documented}; it was not timed: {recipes.how_to_time(target)}"
        return [Recipe(exporter="", opset=None, chosen_by="documented", reason=reason)]
    if recipe == DOCUMENTED:
        return recipes.documented(target, source.problem, recipes.how_to_time(target))
    if recipe != AUTO:
        return [Recipe(exporter=recipe, opset=None, chosen_by="asked", reason="it was asked for")]
    if choose is not None:
        return choose()
    if source.problem is None or source.max_len is None:
        return recipes.documented(target, None, "nothing times it")
    lens = recipes.lengths_within(source.max_len)
    return recipes.choose_recipe(source.problem, target, seed=source.seed, opset=source.opset, seq_lens=lens, say=say)


def _first_right(
    source: Source,
    target: Target,
    candidates: Sequence[Recipe],
    shop: Shop,
    folder: Path,
    cases: Callable[[], tuple[Golden, ...]],
    say: Callable[[str], object],
) -> _Proof:
    """The first recipe whose model is right.

    Raises:
        AttnbenchError: why the only one is not, or the first of several that could be written.
    """
    failed: dict[str, AttnbenchError] = {}
    for recipe in candidates:
        try:
            name, opset = source.write_model(shop, target, recipe.exporter, folder)
            say(f"{name} is written{f' by {recipe.exporter}' if recipe.exporter else ''}")
            chosen = recipe.model_copy(update={"opset": opset, "reason": _with_failed(recipe.reason, failed)})
            return _prove(source, target, chosen, name, cases(), shop, folder)
        except InputError:
            raise
        except AttnbenchError as err:
            failed[recipe.exporter] = err
            for made in folder.glob("model*"):
                made.unlink()
    raise min(failed.values(), key=lambda err: isinstance(err, UnsupportedError))


def _with_failed(reason: str, failed: Mapping[str, AttnbenchError]) -> str:
    said = [f"{name} was left out: {' '.join(str(err).split())[:200]}" for name, err in failed.items()]
    return "; ".join([reason, *said])


def _prove(
    source: Source,
    target: Target,
    recipe: Recipe,
    model: str,
    golden: tuple[Golden, ...],
    shop: Shop,
    folder: Path,
) -> _Proof:
    """Run the golden cases and the probes on the file.

    Raises:
        ArtifactError: it computes something else, or its mask means something else.
    """
    if not can_prove(target):
        unrun = _not_run_on(target, "nothing here runs it")
        return _Proof(model=model, recipe=recipe, golden=golden, checks=(unrun,), conformance=())
    runtime = proving_runtime(target, source)
    inputs, outputs = source.tensors()
    plan = {
        "runtime": runtime, "model": model, "inputs": [t.model_dump(mode="json") for t in inputs],
        "outputs": [t.model_dump(mode="json") for t in outputs],
        "golden": [case.model_dump(mode="json") for case in golden],
        "environment": {"machine": {"architecture": platform.machine()}},
    }  # fmt: skip
    found = shop.ask(
        "attnbench.deploy.prove:prove", preload=(runtime["module"],), folder=str(folder), plan=plan,
        problem=None if source.problem is None else source.problem.as_dict(), seed=source.seed,
    )  # fmt: skip
    where = f"{runtime['distribution']} {runtime['version']}"
    if found["faults"]:
        sentence = f"{_made_by(recipe)} computes something else in {where}: {found['faults'][0]}"
        raise source.wrong(sentence, found["faults"])
    for cell in found["conformance"]:
        if cell["verdict"] != "conforms":
            raise ArtifactError(
                f"{_made_by(recipe)} means something else in {where}: probe {cell['probe']} at {cell['problem']}: "
                f"{cell['how']}; take another --recipe"
            )
    proved = tuple(case.model_copy(update={"errors": found["errors"][case.file]}) for case in golden)
    checks = _checks(target, recipe, proved, found["conformance"], where)
    more = source.check(shop, plan, recipe.opset if model.endswith(".onnx") else None, folder)
    checks = (*more, *(check for check in checks if check.name not in {found.name for found in more}))
    return _Proof(model=model, recipe=recipe, golden=proved, checks=checks, conformance=tuple(found["conformance"]))


def _made_by(recipe: Recipe) -> str:
    return f"the file of {recipe.exporter or 'torch.export'}"


def _checks(
    target: Target, recipe: Recipe, golden: tuple[Golden, ...], conformance: Sequence[Mapping[str, Any]], where: str
) -> tuple[Check, ...]:
    # A limit of 0 is that of integers, which are equal.
    used = max(case.errors[n] / limit if limit else 0.0 for case in golden for n, limit in case.limits.items())
    found = [Check(name="golden cases", result="passed",
                   detail=f"{len(golden)} cases in {where}; the worst uses {used:.2f} of its limit")]  # fmt: skip
    if conformance:
        how_many = "1 probe conforms" if len(conformance) == 1 else f"{len(conformance)} probes conform"
        detail = f"{how_many} in {where}"
        found.append(Check(name="mask semantics", result="passed", detail=detail))
    if recipe.opset is not None:
        found.append(Check(name="opset", result="passed", detail=f"{recipe.opset} was asked and was written"))
    if target.runtime is None:
        found.append(_not_run_on(target, f"the same ONNX file was run by {where} on the CPU instead"))
    if recipe.chosen_by != "measured":
        found.append(Check(name="speed", result="not run", detail=f"nothing was timed: {recipes.how_to_time(target)}"))
    return tuple(found)


def _not_run_on(target: Target, instead: str) -> Check:
    detail = f"no {target.distribution} with a device for it was used here; {instead}"
    return Check(name=f"golden cases in {target.name}", result="not run", detail=detail)


def can_prove(target: Target) -> bool:
    """Does something here run the file of the target?"""
    return target.runtime is not None or target.kind == "onnx"


def proving_runtime(target: Target, source: Source) -> dict[str, Any]:
    """What runs the file here: the target's runtime, else ONNX Runtime on the CPU."""
    return runtime_of(target if target.runtime is not None else TARGETS["onnxruntime-cpu"], source)


def runtime_of(target: Target, source: Source) -> dict[str, Any]:
    """What bundle.json says of the runtime, with the settings that verify.py gives it."""
    installed = environment.versions((target.distribution,))
    return {"name": target.runtime or target.name, "distribution": target.distribution, "module": target.module,
            "version": installed.get(target.distribution, ""), "settings": settings_of(target, source)}  # fmt: skip


def settings_of(target: Target, source: Source) -> dict[str, Any]:
    """Settings under which the certificate holds: nothing is computed in less than the model's dtype."""
    if target.name == "onnxruntime-cuda":
        return {"providers": ["CUDAExecutionProvider"], "provider_options": [{"use_tf32": "0"}]}
    if target.module == "onnxruntime":
        return {"providers": ["CPUExecutionProvider"], "threads": 1, "memory_pattern": False}
    if target.module == "openvino":
        dtypes = {tensor.dtype for tensor in source.tensors()[1]} & set(environment.hardware_dtypes())
        hint = "bf16" if dtypes == {"bf16"} else "f32"  # asked for what a CPU lacks, OpenVINO takes bf16 silently
        return {"device": "CPU", "INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1,
                "PERFORMANCE_HINT": "LATENCY"}  # fmt: skip
    if target.module == "torch":
        return {"threads": 1, "float32_matmul_precision": "highest"}
    if target.module == "tensorrt":
        return {"tf32": False}
    return {}


def _finish(source: Source, target: Target, proof: _Proof, folder: Path) -> Bundle:
    """Everything but the model and the cases; bundle.json last."""
    inputs, outputs = source.tensors()
    (folder / VERIFIER).write_text(verifier(), encoding="utf-8")
    described = environment.describe()
    bundle = Bundle(
        attnbench_version=attnbench.__version__, created_at_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        target=target.name, runtime=runtime_of(target, source), model=proof.model,
        problem=None if source.problem is None else source.problem.as_dict(), module=source.module, seed=source.seed,
        inputs=inputs, outputs=outputs, ranges=ranges_of(proof.golden), recipe=proof.recipe, files={},
        versions=environment.versions((*_VERSIONS, target.distribution)),
        environment={name: described[name] for name in ("machine", "os", "python")},
        golden=proof.golden, checks=proof.checks, conformance=proof.conformance,
    )  # fmt: skip
    (folder / README).write_text(readme(bundle, source.sentence(), source.notes()), encoding="utf-8")
    files = {p.relative_to(folder).as_posix(): describe(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    assert MANIFEST not in files
    bundle = bundle.model_copy(update={"files": files})
    write_manifest(folder, bundle)
    return bundle


def verifier() -> str:
    """The text of verify.py: its modules as one file, which needs nothing of attnbench."""
    begin, runtimes, bundle = (inspect.getsource(m) for m in (verify_begin, verify_runtimes, verify_bundle))
    joined, count = _IMPORT.subn(lambda _: f"\n{runtimes}\n\n", bundle)
    assert count == 1
    head, first, rest = joined.partition("import argparse\n")
    assert first
    return f"{head}{begin}\n\nbegin(__file__)\n\n{first}{rest}"
