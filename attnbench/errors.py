"""Every error that attnbench raises on purpose.

AttnbenchError
├── InputError            the user's flag, file, value or path is wrong        (exit code 2)
│   ├── ProblemError      a problem that contradicts itself or cannot exist
│   ├── RecordsError      a run directory or records file that cannot be read
│   └── UntrustedModelError a model, bundle or weights from elsewhere that no runtime shall see
├── PluginError           an exporter or runtime is missing or broken
├── ExportError           an exporter could not write what was asked
│   ├── OpsetError        the opset in the file is not the opset asked
│   ├── FrozenDimError    a dimension that was asked dynamic is a number in the file
│   └── ArtifactError     the file is not valid, or computes something else
├── UnsupportedError      this combination cannot be run, with the reason       (status unsupported)
├── UnavailableError      this machine or environment lacks what is needed      (status unavailable)
├── ReadBackError         the runtime does not do what was asked (threads, precision, device, provider)
├── MeasurementError      a figure that cannot be formed from what was measured
│   └── ShapeMismatch     two arrays that cannot be compared element by element
├── NotRunError           outputs were asked for before the bound call ran
└── WorkerError           a worker process failed to answer
    ├── WorkerTimeout     it was still busy at its deadline
    ├── WorkerCrashed     it died (signal or exit code)
    └── WorkerOutOfMemory it could not get the memory
"""


class AttnbenchError(Exception):
    """Base of all errors raised on purpose. The message has the value, the rule and the way out."""


class InputError(AttnbenchError):
    """The user's input is wrong; nothing was run or written."""


class ProblemError(InputError):
    """A problem that contradicts itself or cannot exist."""


class RecordsError(InputError):
    """A run directory or records file that cannot be read."""


class UntrustedModelError(InputError):
    """A model, bundle or weights file that is not shown to a runtime: it reaches outside, lies, or asks too much."""


class PluginError(AttnbenchError):
    """An exporter or runtime is missing or broken."""


class ExportError(AttnbenchError):
    """An exporter could not write what was asked."""


class OpsetError(ExportError):
    """The opset in the file is not the opset asked."""


class FrozenDimError(ExportError):
    """A dimension that was asked dynamic is a number in the file."""


class ArtifactError(ExportError):
    """The file is not valid, or computes something else than the reference."""


class UnsupportedError(AttnbenchError):
    """This combination cannot be run; the message is the reason."""


class UnavailableError(AttnbenchError):
    """This machine or environment lacks what is needed; the message says what to install."""


class ReadBackError(AttnbenchError):
    """What was read back from the runtime is not what was asked."""


class MeasurementError(AttnbenchError):
    """A figure cannot be formed from what was measured."""


class ShapeMismatch(MeasurementError):
    """Two arrays cannot be compared element by element: shapes differ, or there is nothing to compare."""


class NotRunError(AttnbenchError):
    """Outputs were asked for before the bound call ran."""


class WorkerError(AttnbenchError):
    """A worker process failed to answer."""


class WorkerTimeout(WorkerError):
    """The worker was still busy at its deadline and was killed."""


class WorkerCrashed(WorkerError):
    """The worker died; the message names the signal or the exit code."""


class WorkerOutOfMemory(WorkerError):
    """The worker could not get the memory that the case needs."""


def printable(line: str) -> str:
    """A line with all that could steer a terminal written out: names in files from elsewhere may hold anything."""
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
