"""attnbench: export attention to ONNX and compare runtimes over T, with numbers that can be believed."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.api import advise, bench, diff, export, open_run
    from attnbench.bundles import export_bundle, export_module, verify
    from attnbench.merging import merge
    from attnbench.reference import reference_attention

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "advise",
    "bench",
    "diff",
    "export",
    "export_bundle",
    "export_module",
    "merge",
    "open_run",
    "reference_attention",
    "verify",
]

_HOMES = {
    "bench": "attnbench.api",
    "advise": "attnbench.api",
    "diff": "attnbench.api",
    "export": "attnbench.api",
    "export_bundle": "attnbench.bundles",
    "export_module": "attnbench.bundles",
    "verify": "attnbench.bundles",
    "merge": "attnbench.merging",
    "open_run": "attnbench.api",
    "reference_attention": "attnbench.reference",
}


def __getattr__(name: str) -> Any:
    """Import what was asked for on first use, so that `import attnbench` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, imported yet or not."""
    return sorted({*globals(), *__all__})
