"""Write small distributions into a folder, as an installer would, for tests of plug-ins."""

from pathlib import Path


def write_distribution(
    folder: Path,
    name: str,
    *,
    runtimes: dict[str, str] | None = None,
    exporters: dict[str, str] | None = None,
    **modules: str,
) -> Path:
    """A distribution `name` 1.2.3 with entry points and one file per module; gives the folder to put on the path."""
    info = folder / f"{name.replace('-', '_')}-1.2.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n", encoding="utf-8")
    lines = []
    for group, points in (("attnbench.runtimes", runtimes), ("attnbench.exporters", exporters)):
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in (points or {}).items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
    return folder
