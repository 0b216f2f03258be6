"""In workers: a model is cut into its attention regions, and regions and the whole are compiled."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench import trt_compiler
from attnbench.errors import UnsupportedError
from attnbench.fusion import bypass
from attnbench.fusion.branches import bodies, inner_softmaxes
from attnbench.fusion.cut import Cut, cut
from attnbench.fusion.lint_verdicts import is_too_small
from attnbench.fusion.regions import Region, find_regions
from attnbench.fusion.sized_graph import BRANCHES, load_structure, sized_graph
from attnbench.fusion.stretch import STRETCHED, stretched


def cut_file(*, path: str, sizes: Sequence[Mapping[str, int]], folder: str) -> dict[str, Any]:
    """Write every different region of a model as a model of its own, at all sizes.

    Args:
        path: of the model.
        sizes: of its free dims, at T and at 2T; one where nothing follows T.
        folder: for the files.

    Returns:
        regions: in the order of the file, each as `_told`; inner: softmaxes inside Loop and Scan, which are not
        looked at; branches: how many If were written out.

    Raises:
        UnsupportedError: the regions at T are not those at 2T.
    """
    structure = load_structure(Path(path))
    graphs = [sized_graph(structure, at) for at in sizes]
    found = [find_regions(graph) for graph in graphs]
    if len({len(regions) for regions in found}) > 1:
        raise UnsupportedError("the model has other attention at T than at 2T; fix its sizes and export it again")
    told = []
    for number, regions in enumerate(zip(*found, strict=True)):
        cuts = [cut(graph, region) for graph, region in zip(graphs, regions, strict=True)]
        told.append({"number": number, **_told(regions[0], cuts, Path(folder))})
    inner = sum(inner_softmaxes(body) for node in structure.graph.node for _, body in bodies(node))
    branches = next(int(entry.value) for entry in structure.metadata_props if entry.key == BRANCHES)
    return {"regions": told, "inner": inner, "branches": branches}


def _told(region: Region, cuts: Sequence[Cut | None], folder: Path) -> dict[str, Any]:
    """What the parent has to know of a region; files is empty where sizes in it are not known."""
    anchor = region.anchor
    domain = anchor.domain if anchor.domain not in ("", "ai.onnx") else ""
    found: dict[str, Any] = {
        "node": anchor.name or anchor.output[0], "operator": f"{domain}::{anchor.op_type}".removeprefix("::"),
        "is_operator": region.is_operator, "files": [], "changes": [], "scores": [], "passed": [],
        "names": [], "is_stretched": False, "own_scores": [],
    }  # fmt: skip
    known = [made for made in cuts if made is not None]
    if len(known) < len(cuts):
        return found
    found["own_scores"] = [made.score_bytes for made in known]
    if len(known) == 1 and is_too_small(known[0].score_bytes, known[0].passed_bytes):
        longer = [made for length in STRETCHED if (made := stretched(known[0], length)) is not None]
        known, found["is_stretched"] = (longer, True) if len(longer) == len(STRETCHED) else (known, False)
    for made in known:
        file = folder / f"{made.key}.onnx"
        file.write_bytes(made.model.SerializeToString(deterministic=True))
        found["files"].append(str(file))
        found["scores"].append(made.score_bytes)
        found["passed"].append(made.passed_bytes)
    found["names"] = list(known[0].names)
    for change in bypass.changes_of(known[0].model):
        name = known[0].names[int(change.node[1:])] if change.node else ""
        found["changes"].append({**change.as_dict(), "node": name})
    return found


def compile_region(*, files: Sequence[str], changes: Sequence[str], arch: str, is_operator: bool) -> dict[str, Any]:
    """Compile a region at all sizes without some of what is in it.

    Args:
        files: of the region at every size.
        changes: keys of `bypass.changes_of`.
        arch: of `trt_compiler.ARCHS`.
        is_operator: one `Attention` node, that a strict build may refuse and another one take apart.

    Returns:
        planned: bytes at every size; None: refused; stage and words: of the first refusal; version.
    """
    import onnx

    built = [_build(bypass.without(onnx.load(file), changes), arch, None) for file in files]
    refused = next((made for made in built if made.is_refused), None)
    if refused is not None and refused.stage == "compiler" and is_operator:
        built = [_build(bypass.without(onnx.load(file), changes), arch, False) for file in files]
    return _answer(built, refused)


def _build(model: Any, arch: str, strict: bool | None) -> trt_compiler.Compiled:
    return trt_compiler.compile_onnx(model.SerializeToString(), shapes={}, arch=arch, strict=strict)


def compile_whole(*, path: str, shapes: Mapping[str, Sequence[int]], arch: str) -> dict[str, Any]:
    """Compile the whole model at one size; as `compile_region`."""
    strict = trt_compiler.compile_onnx(Path(path), shapes=shapes, arch=arch)
    if not (strict.is_refused and strict.stage == "compiler"):
        return _answer([strict], strict if strict.is_refused else None)
    return _answer([trt_compiler.compile_onnx(Path(path), shapes=shapes, arch=arch, strict=False)], strict)


def _answer(built: Sequence[trt_compiler.Compiled], refused: trt_compiler.Compiled | None) -> dict[str, Any]:
    return {
        "planned": [made.planned_activation_bytes for made in built], "version": built[0].version,
        "stage": "" if refused is None else refused.stage, "words": "" if refused is None else refused.words,
    }  # fmt: skip
