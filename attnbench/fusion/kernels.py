"""In a worker: how many attentions of a model the compiler fuses; why not is what the linter finds out."""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.fusion.lint_tasks import compile_region, cut_file
from attnbench.fusion.lint_verdicts import verdict


def count_verdicts(*, path: str, sizes: Sequence[Mapping[str, int]], arch: str) -> dict[str, Any]:
    """Judge every attention of a model, equal ones once.

    Args:
        path: of the ONNX file, which was inspected.
        sizes: of its free dims, at T and at 2T; one where nothing follows T.
        arch: of `trt_compiler.ARCHS`.

    Returns:
        {"verdicts": fused, unfused, refused or unknown -> how many}.

    Raises:
        UnsupportedError: as `lint_tasks.cut_file`.
    """
    with tempfile.TemporaryDirectory(prefix="attnbench-kernels-") as folder:
        regions = cut_file(path=path, sizes=sizes, folder=folder)["regions"]
        different = {tuple(region["files"]): region for region in regions}
        said = {files: _judged(region, arch) for files, region in different.items()}
    return {"verdicts": Counter(said[tuple(region["files"])] for region in regions)}


def _judged(region: Mapping[str, Any], arch: str) -> str:
    if not region["files"]:  # its sizes do not follow from those of the inputs
        return "unknown"
    answer = compile_region(files=region["files"], changes=(), arch=arch, is_operator=region["is_operator"])
    said = verdict(answer["planned"], region["scores"], region["passed"])
    return "unfused" if said == "fused" and answer["words"] else said  # only by taking the operator apart
