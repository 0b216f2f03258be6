"""Install attnbench into the environment of the Python that runs this; `make setup` calls it. Standard library only.

What is to be decided: cpu or gpu, what of the system must stay as it is, and where packages come from.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
# With SYSTEM=1 an installed one of these is never replaced: they belong to the driver and CUDA of the image.
PROTECTED = re.compile(r"^(torch|torchvision|torchaudio|triton|tensorrt(-.*)?|onnxruntime(-.*)?)$")
# NVIDIA's compiler that works without a GPU too; its requirement says on which systems there is one.
RTX = "rtx"
# All of them own the package `onnxruntime`: a second one beside the first destroys it.
ONNXRUNTIMES = ("onnxruntime", "onnxruntime-gpu")
BUILD_TOOLS = ("hatchling", "editables", "pip")


def main(argv: Sequence[str] | None = None) -> int:
    """Run pip; gives its exit code."""
    args = parse(argv)
    extra = args.extra or ("gpu" if has_nvidia_driver() else "cpu")
    installed = installed_versions() if args.system else {}
    requirements = needed(extra, installed)
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(
            constrain((HERE / "constraints.txt").read_text(encoding="utf-8"), installed), encoding="utf-8"
        )
        if args.wheelhouse:
            return fill(Path(args.wheelhouse), requirements, constraints, args.torch_index)
        code = install(requirements, constraints, args.offline, args.torch_index)
    if code != 0 and args.system:
        keep = ", ".join(f"{name} {version}" for name, version in installed.items() if PROTECTED.match(name))
        sys.stderr.write(
            f"make setup SYSTEM=1 keeps {keep or 'nothing: the system has no torch, TensorRT or onnxruntime'}; "
            "if one of these is too old for attnbench, use a newer image, or make clean setup without SYSTEM=1\n"
        )
    return code


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The settings of the Makefile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", choices=("cpu", "gpu"), help="default: gpu where nvidia-smi works")
    parser.add_argument("--system", action="store_true", help="keep torch, TensorRT and onnxruntime of the system")
    parser.add_argument("--offline", metavar="DIR", help="install from this folder alone")
    parser.add_argument("--torch-index", metavar="URL", help="package index to take torch from")
    parser.add_argument("--wheelhouse", metavar="DIR", help="fill this folder for --offline instead of installing")
    return parser.parse_args(argv)


def has_nvidia_driver() -> bool:
    """Does `nvidia-smi` find a GPU?"""
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"GPU" in done.stdout


def installed_versions() -> dict[str, str]:
    """Normalised distribution name -> version of all that this Python sees."""
    return {normalise(dist.name): dist.version for dist in importlib.metadata.distributions() if dist.name}


def normalise(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(extra: str, installed: Mapping[str, str]) -> list[str]:
    """What to install: the clone with its extra, or the extra's packages without a second onnxruntime or TensorRT."""
    kept = [name for name in installed if PROTECTED.match(name)]
    if not any(name in ONNXRUNTIMES or name.startswith("tensorrt") for name in kept):
        return [f"{HERE}[{extra},{RTX},dev]"]
    packages = [*extra_packages(extra), *extra_packages(RTX)]
    if any(name in ONNXRUNTIMES for name in kept):
        packages = [p for p in packages if requirement_name(p) not in ONNXRUNTIMES]
    # TensorRT-RTX is another product, with a module of its own: both may be there.
    for mine in ("tensorrt", "tensorrt-rtx"):
        if any(re.fullmatch(rf"{mine}(-cu\d+)?", name) for name in kept):
            packages = [p for p in packages if requirement_name(p) != mine]
    return [f"{HERE}[dev]", *packages]


def extra_packages(extra: str) -> list[str]:
    """The requirements of one extra, from pyproject.toml."""
    import tomllib

    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"][extra])


def requirement_name(requirement: str) -> str:
    """The distribution that a requirement such as `onnxruntime>=1.23` names."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return normalise(match[0])


def constrain(pins: str, installed: Mapping[str, str]) -> str:
    """The pins, with what the system has and must keep at the version it has."""
    keep = {name: version for name, version in installed.items() if PROTECTED.match(name)}
    lines = [line for line in pins.splitlines() if line.startswith("#") or requirement_name(line) not in keep]
    return "\n".join([*lines, *(f"{name}=={version}" for name, version in sorted(keep.items()))]) + "\n"


def install(requirements: Sequence[str], constraints: Path, offline: str | None, torch_index: str | None) -> int:
    """Install the clone, editable; torch first when it comes from elsewhere."""
    source = ["--no-index", "--find-links", os.fspath(Path(offline).resolve())] if offline else []
    if offline and not Path(offline).is_dir():
        sys.stderr.write(f"make setup: OFFLINE must be a folder that `make wheelhouse` filled, got {offline!r}\n")
        return 2
    if torch_index and pip("install", "--constraint", constraints, "--index-url", torch_index, "torch") != 0:
        return 1
    return pip("install", "--constraint", constraints, *source, "--editable", *requirements)


def fill(folder: Path, requirements: Sequence[str], constraints: Path, torch_index: str | None) -> int:
    """Collect wheels of everything, and of what builds the clone, into a folder."""
    index = ["--extra-index-url", torch_index] if torch_index else []
    code = pip("wheel", "--wheel-dir", folder, "--constraint", constraints, *index, *requirements, *BUILD_TOOLS)
    for wheel in folder.glob("attnbench-*.whl"):
        wheel.unlink()
    return code


def pip(*arguments: str | Path) -> int:
    """Run this environment's pip."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        *(os.fspath(argument) for argument in arguments),
    ]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
