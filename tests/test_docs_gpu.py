"""What docs/gpu.md promises is what the programs do and say."""

import inspect
import re
from pathlib import Path

import pytest

from attnbench.measure import environment
from attnbench_runtimes import cuda_driver, gpu_stack, ort, ort_gpu, tensorrt

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GPU = (DOCS / "gpu.md").read_text(encoding="utf-8")
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "gpu").iterdir()}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_file_that_is_linked_exists_and_the_page_is_linked() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", GPU) if "://" not in link]
    assert {"gpu/Dockerfile", "gpu/gpu-check.slurm"} <= set(links)
    assert [link for link in links if not (DOCS / link).exists()] == []
    assert "docs/gpu.md" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [GPU, *SCRIPTS.values()], ids=["gpu.md", *SCRIPTS])
def test_every_target_and_setting_of_make_exists(text: str) -> None:
    used = re.findall(r"(?<![\w-])make ([a-z][a-z-]*)((?: [A-Z_]+=)*)", text.replace("\n", " "))
    targets = {target for target, _ in used}
    assert targets
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    settings = set(re.findall(r"\b([A-Z_]+)=\S*(?= |`|$)", " ".join(re.findall(r"make [^`\n]*", text))))
    assert settings <= set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("there is no NVIDIA driver: ", cuda_driver),
        ("NVIDIA's driver finds no GPU: ", cuda_driver),
        ("CUDA_VISIBLE_DEVICES is ", cuda_driver),
        ("NVIDIA's driver runs CUDA ", gpu_stack),
        ("has no ", ort),
        ("are both installed", ort),
        ("needs, {verb} missing", ort_gpu),
        (" is installed, TensorRT ", gpu_stack),
        ("; this GPU is ", gpu_stack),
        (" hides the installed package ", environment),
    ],
)
def test_what_the_doctor_is_said_to_say_is_what_the_code_says(words: str, module: object) -> None:
    assert words in inspect.getsource(module)  # type: ignore[arg-type]
    assert words.replace("{verb}", "are") in GPU


@pytest.mark.parametrize("runtime", [tensorrt.Tensorrt, tensorrt.TensorrtRtx])
def test_the_table_names_every_option_and_value_of_tensorrt(runtime: type[tensorrt.TensorrtRuntime]) -> None:
    row = next(
        line for line in GPU.splitlines() if line.startswith("|") and f"`{runtime.name}`" in line and "=" in line
    )
    options = {name: values for name, values in runtime.options.items() if name != "arch"}  # of compiling without a GPU
    assert options
    missing = [f"{name}={value}" for name, values in options.items() for value in values if value not in row]
    assert [name for name in options if f"`{name}=" not in row] + missing == []


def test_what_nobody_built_says_so() -> None:
    assert "Not built here" in SCRIPTS["Dockerfile"]
    assert "Not run here" in SCRIPTS["gpu-check.slurm"]
    assert "not\nyet timed on one" in GPU
