"""Files that are not what their name says, above all pickles: loading one runs the code in it."""

from pathlib import Path
from typing import BinaryIO

from attnbench.errors import UntrustedModelError

PICKLED = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".npy", ".npz", ".pt2")
_MAGIC = (
    (b"PK\x03\x04", "a zip, as pickles of PyTorch are"), (b"PK\x05\x06", "an empty zip"),
    (b"\x80\x02", "a pickle"), (b"\x80\x03", "a pickle"), (b"\x80\x04", "a pickle"), (b"\x80\x05", "a pickle"),
    (b"\x1f\x8b", "compressed by gzip"), (b"\x89HDF", "an HDF5 file"), (b"\x93NUMPY", "an array of NumPy"),
    (b"GGUF", "a GGUF file"), (b"\x7fELF", "a program"), (b"MZ", "a program"),
)  # fmt: skip
_WAY_OUT = "save weights as .safetensors and models as .onnx where the file comes from"


def refuse_foreign(path: Path, file: BinaryIO) -> None:
    """Raise for a file that is a pickle, an archive or a program by its name or first bytes.

    Raises:
        UntrustedModelError: with what it is.
    """
    name = f"{str(path)!r} is refused: it"
    if path.suffix.lower() in PICKLED:
        raise UntrustedModelError(f"{name} may hold pickled code, as {path.suffix} files do; {_WAY_OUT}")
    file.seek(0)
    head = file.read(8)
    file.seek(0)
    for magic, what in _MAGIC:
        if head.startswith(magic):
            raise UntrustedModelError(f"{name} is {what}, whatever its name says; {_WAY_OUT}")
    if head[4:8] == b"ORTM":
        raise UntrustedModelError(f"{name} is in ONNX Runtime's own format, which is not checked here; {_WAY_OUT}")
