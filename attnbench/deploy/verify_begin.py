"""How verify.py begins: it asks for what it needs in words, and takes modules from the installed packages alone."""

import os
import sys


def begin(script):
    # type: (str) -> None
    """Go on only where Python is new enough and NumPy is there; else exit code 5, with the reason.

    A file of the folder that is called numpy.py would be imported in place of NumPy.

    Args:
        script: the path of verify.py; without annotations, which old versions of Python evaluate.
    """
    folder = os.path.dirname(os.path.realpath(script))  # noqa: PTH120 - pathlib could come from that folder
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != folder]
    sentence = ""
    if sys.version_info < (3, 10):  # noqa: UP036 - the bundle travels to machines that this package does not
        sentence = "Python %d.%d is too old; run it by 3.10 or newer" % sys.version_info[:2]  # noqa: UP031
    else:
        try:
            import numpy  # noqa: F401
        except (ImportError, OSError) as err:
            sentence = f"numpy cannot be imported ({err}); pip install numpy"
    if sentence:
        print(f"cannot load: {sentence}")  # noqa: T201
        sys.exit(5)
