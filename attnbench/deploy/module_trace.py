"""In a worker: a module of the user as a torch.export program with free dims, or the line that freezes one."""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from attnbench.deploy.module_code import UserCode, first_line, line_of, to_torch
from attnbench.deploy.module_inputs import Case, ModuleInputs, make_arrays
from attnbench.deploy.module_reference import declared_path, flat_module
from attnbench.errors import AttnbenchError, ExportError, FrozenDimError

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_GUARD = re.compile(r"eval (?P<what>.+?) \[guard added\] \((?P<where>.+?:\d+) in ")
_RULE = re.compile(r"Not all values of (?P<dim>\w+) = .*? satisfy the generated guard (?P<rule>.+?)\.?$", re.MULTILINE)
_PLACE = re.compile(r"L\['\w+'\]\[\d+\]\.size\(\)\[\d+\]")
_FROZEN = re.compile(r"marked (?P<dim>\w+) as dynamic but your code specialized it to be a constant \((?P<size>\d+)\)")


def trace(name: str, module: Any, found: ModuleInputs) -> Any:
    """The torch.export.ExportedProgram of the module: tensors in the order of the inputs, a tuple of tensors out.

    Raises:
        FrozenDimError: its code makes a free dim a number, or restricts it, with the line.
        ExportError: it decides by data, or torch.export does not take it, with the line.
    """
    import torch

    try:
        return _export(name, module, found, is_deferred=False)
    except FrozenDimError as err:
        # A table that is sliced to T, at the T that takes all of it: that size is run on the file, so the rule may go.
        rules = [(rule["dim"], rule["rule"]) for rule in _RULE.finditer(str(err.__cause__))]
        if not rules or any(rule != f"{dim} != {found.ranges[dim].most}" for dim, rule in _plain(rules)):
            raise
    program = _export(name, module, found, is_deferred=True)
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _export(name: str, module: Any, found: ModuleInputs, *, is_deferred: bool) -> Any:
    """Trace; `is_deferred`: what the code needs of sizes is asserted in the program instead of refused."""
    import torch

    arrays = make_arrays(found, Case(name="example", sizes=found.examples))
    tensors = tuple(to_torch(array).contiguous() for array in arrays.values())
    symbols = {dim: torch.export.Dim(dim, min=r.least, max=r.most) for dim, r in found.ranges.items()}
    dims = [{axis: symbols[d] for axis, d in enumerate(i.dims) if isinstance(d, str)} for i in found.inputs.values()]
    with _guards() as guards, warnings.catch_warnings(), declared_path(), _Tracing(name, guards):
        warnings.simplefilter("ignore")  # parts of torch that torch deprecated
        return torch.export.export(
            flat_module(module, found), tensors, dynamic_shapes=(tuple(dims),), strict=False,
            prefer_deferred_runtime_asserts_over_guards=is_deferred,
        )  # fmt: skip


def _plain(rules: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Rules of torch with the dim's name for its place: ("T", "T != 64")."""
    for dim, rule in rules:
        yield dim, _PLACE.sub(dim, rule)


class _Tracing(UserCode):
    """Says why torch.export gave up."""

    def __init__(self, name: str, guards: list[tuple[str, str]]) -> None:
        super().__init__(f"{name} cannot be exported")
        self.guards = guards

    def told(self, err: Exception) -> AttnbenchError:
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        if isinstance(err, GuardOnDataDependentSymNode):
            return ExportError(
                f"{self.doing}: {line_of(err)}it decides by the values of a tensor, and a file has one path; use "
                "torch.where or torch.cond, or decide outside of the module"
            )
        if frozen := _FROZEN.search(str(err)):
            lines = [where for what, where in self.guards if re.search(rf"\b{frozen['size']}\b", what)]
            at = f"{lines[0].replace(':', ', line ')}: " if lines else ""
            return FrozenDimError(
                f"{self.doing}: {at}{frozen['dim']} becomes the number {frozen['size']} of the example; take it from "
                "x.shape and keep it out of int(), NumPy, lists and buffers, or write the number into dims"
            )
        if "Constraints violated" in str(err):
            rules = [rule for _, rule in _plain((rule["dim"], rule["rule"]) for rule in _RULE.finditer(str(err)))]
            words = "; ".join(rules) or " ".join(str(err).split())[:300]
            return FrozenDimError(
                f"{self.doing}: its code allows only some sizes of a free dim ({words}); set min and max in [ranges] "
                "so, or change the code"
            )
        return ExportError(f"{self.doing}: {line_of(err)}{first_line(err)}")


@contextlib.contextmanager
def _guards() -> Iterator[list[tuple[str, str]]]:
    """What torch decides about sizes inside, and where: ("Eq(s50, 11)", "blocks.py:27")."""
    seen: list[tuple[str, str]] = []

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if found := _GUARD.match(record.getMessage()):
                seen.append((found["what"], found["where"]))

    logger, note = logging.getLogger(_SHAPES), Note()
    was = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.level, logger.propagate = [note], logging.INFO, False
    try:
        yield seen
    finally:
        logger.handlers, logger.level, logger.propagate = was
