"""Run a module of attnbench under an interpreter that has not installed it; it needs the runtime and NumPy.

Run by path: `python -P guest.py LENT MODULE ARGUMENT...`; LENT is the JSON of a `Lent`. This file imports nothing of
attnbench. Packages are lent by name, never by a folder on `sys.path`: the folder that holds attnbench may hold our
NumPy and our onnxruntime too, which must not stand in for what the other interpreter lacks.
"""

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import runpy
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class LentDistribution(importlib.metadata.Distribution):
    """A distribution of which only name, version and entry points are known here."""

    def __init__(self, name: str, version: str, entry_points: str) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "entry_points.txt": entry_points,
        }

    def read_text(self, filename: str) -> str | None:
        """A file of the metadata; None: there is no such file."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Path:
        """Where a file of the distribution is: nobody knows."""
        raise NotImplementedError(f"{path}: the files of a lent distribution are not listed")


class Lent(importlib.metadata.DistributionFinder):
    """Finds the packages that attnbench lends, and what they declare.

    Args:
        packages: name of a package or module -> its `__init__.py` or file.
        distributions: name, version and the text of entry_points.txt of each.
    """

    def __init__(self, packages: dict[str, str], distributions: Sequence[Sequence[str]]) -> None:
        self._packages = packages
        self._distributions = [LentDistribution(*fields) for fields in distributions]

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        """Where a lent package is; its own modules are then found in its folder."""
        origin = self._packages.get(fullname)
        if origin is None or path is not None:
            return None
        folder = [str(Path(origin).parent)] if Path(origin).name == "__init__.py" else None
        return importlib.util.spec_from_file_location(fullname, origin, submodule_search_locations=folder)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """The lent distributions, or the one of that name."""
        name = None if context is None else context.name
        return [found for found in self._distributions if name in (None, found.name)]


def main(argv: list[str]) -> None:
    """Lend what the first argument says and run the module that the second names."""
    lent, module, *arguments = argv
    sys.dont_write_bytecode = True  # this interpreter leaves nothing in the folders of another
    sys.meta_path.insert(0, Lent(**json.loads(lent)))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
