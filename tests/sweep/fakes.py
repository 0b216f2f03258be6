"""Source of fake runtimes for the tests of the harness; installed by `install_plugin`, never imported here."""

ORPHAN = "ATTNBENCH_ORPHAN"  # in the command lines of processes that a fake leaves behind
FAKES = '''
import os, signal, subprocess, sys, time
from contextlib import contextmanager
import numpy as np
from attnbench.errors import NotRunError, UnsupportedError
from attnbench.inputs import make_weights
from attnbench.interfaces import Facts, Probe, SUPPORTED
from attnbench.reference import reference_output


class Session:
    """Computes by NumPy in float64; `hook(self)` runs in every call."""

    def __init__(self, problem, settings, hook):
        self.problem, self.settings, self.hook = problem, settings, hook
        self.out = None
        self.weights = make_weights(problem, seed=settings.seed)

    def bind(self, inputs):
        inputs = {name: array.copy() for name, array in inputs.items()}
        self.out = None
        shape = next(iter(inputs.values())).shape
        self.lengths = shape[-2]

        def call():
            self.hook(self)
            p = self.problem.at(q_len=shape[-2], batch_size=shape[0])
            self.out = reference_output(p, inputs, self.weights).astype("float32")

        return call

    def outputs(self):
        if self.out is None:
            raise NotRunError("call first")
        return self.out.copy()

    def facts(self):
        return Facts(runtime_version="1", device="cpu", device_name="fake", threads=1, compute_precision="fp32")


class Good:
    name = "good"
    takes_artifact = False
    opt_in = False
    preload = ()
    session = Session

    def hook(self, session):
        pass

    def probe(self):
        return Probe(available=True, version="1")

    def supports(self, problem, artifact):
        return SUPPORTED

    @contextmanager
    def load(self, problem, artifact, settings):
        yield self.session(problem, settings, self.hook)


class Sleeper(Good):
    name = "sleeper"
    def hook(self, session):
        time.sleep(1000)


class Stubborn(Good):
    name = "stubborn"
    def hook(self, session):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)


class Grandchild(Good):
    name = "grandchild"
    def hook(self, session):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)  # ATTNBENCH_ORPHAN"],
                         start_new_session=True, close_fds=False)
        time.sleep(1000)


class Leaver(Good):
    name = "leaver"
    def hook(self, session):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)  # ATTNBENCH_ORPHAN"],
                         start_new_session=True, close_fds=False)
        os._exit(0)


class Segfault(Good):
    name = "segfault"
    def hook(self, session):
        os.kill(os.getpid(), signal.SIGSEGV)


class Killed(Good):
    name = "killed"
    def hook(self, session):
        os.kill(os.getpid(), signal.SIGKILL)


class Printer(Good):
    name = "printer"
    def hook(self, session):
        if not hasattr(self, "printed"):
            self.printed = True
            for _ in range(50):
                os.write(2, b"x" * (1 << 20))


class Exiter(Good):
    name = "exiter"
    def hook(self, session):
        os._exit(0)


class HalfJson(Good):
    name = "half-json"
    def hook(self, session):
        for fd in range(3, 64):
            try:
                os.write(fd, b'{"result": {"agree')
            except OSError:
                pass
        os._exit(0)


class Raiser(Good):
    name = "raiser"
    def hook(self, session):
        raise RuntimeError("kaputt\\nin two lines")


class Oom(Good):
    name = "oom-at-32"
    def hook(self, session):
        if session.lengths >= 32:
            raise MemoryError("cannot allocate 1 TiB")


class Hog(Good):
    name = "hog"
    def hook(self, session):
        if session.lengths >= 32:
            self.held = np.ones(1 << 30)


class Nan(Good):
    name = "nan"
    class session(Session):
        def outputs(self):
            out = super().outputs()
            out[..., 3, 1] = np.nan
            return out


class Dtype(Good):
    name = "dtype"
    class session(Session):
        def outputs(self):
            return super().outputs().astype("float64")


class Cached(Good):
    """Computes once in its life."""
    name = "cached"
    class session(Session):
        kept = None
        def bind(self, inputs):
            call = super().bind(inputs)
            def cached():
                if type(self).kept is None:
                    call()
                    type(self).kept = self.out
                self.out = type(self).kept
            return cached


class Ahead(Good):
    """Computes in bind."""
    name = "ahead"
    class session(Session):
        def bind(self, inputs):
            super().bind(inputs)()
            return lambda: None


class Memo(Good):
    """Computes once per binding."""
    name = "memo"
    class session(Session):
        def bind(self, inputs):
            call = super().bind(inputs)
            def memoised():
                if self.out is None:
                    time.sleep(0.005)
                    call()
            return memoised


class View(Good):
    """Keeps a view of the harness's inputs."""
    name = "view"
    class session(Session):
        def bind(self, inputs):
            self.out = None
            def call():
                self.out = reference_output(self.problem.at(q_len=next(iter(inputs.values())).shape[-2]), inputs,
                                            self.weights).astype("float32")
            return call


class Refuser(Good):
    name = "refuser"
    @contextmanager
    def load(self, problem, artifact, settings):
        raise UnsupportedError("it does not like this problem")
        yield


class Late(Good):
    """Right when checked, wrong from the fiftieth call on."""
    name = "late"
    class session(Session):
        calls = 0
        def bind(self, inputs):
            call = super().bind(inputs)
            def timed():
                self.calls += 1
                call()
                if self.calls > 15:
                    self.out = self.out * 1.1
            return timed


class FirstSlow(Good):
    """Takes 100 ms at the first call of every shape, as a runtime that compiles per shape does."""
    name = "first-slow"
    class session(Session):
        seen = set()
        def bind(self, inputs):
            call = super().bind(inputs)
            shape = self.lengths
            def slow_once():
                if shape not in self.seen:
                    self.seen.add(shape)
                    time.sleep(0.1)
                call()
            return slow_once


class Threads(Good):
    """Runs with other threads than asked."""
    name = "threads"
    class session(Session):
        def facts(self):
            return Facts(runtime_version="1", device="cpu", device_name="fake", threads=7, compute_precision="fp32")


class Downgrade(Good):
    """Computes fp32 in bf16 and says so."""
    name = "downgrade"
    class session(Session):
        def facts(self):
            return Facts(runtime_version="1", device="cpu", device_name="fake", threads=1, compute_precision="bf16")


class OddFacts(Good):
    """Tells its version as a number."""
    name = "odd-facts"
    class session(Session):
        def facts(self):
            return Facts(runtime_version=3, device="cpu", device_name="fake", threads=1, compute_precision="fp32")


class OddWords(Good):
    """Complains in bytes that are no text and in terminal control characters."""
    name = "odd-words"
    def hook(self, session):
        raise RuntimeError("\\udcff \\x1b[31m\\x00 bad")


class OddDetail(Good):
    """Tells details that JSON cannot hold."""
    name = "odd-detail"
    class session(Session):
        def facts(self):
            return Facts(runtime_version="\\udcff", device="cpu", device_name="fake", threads=1,
                         compute_precision="fp32", detail={"thing": {1, 2}})


class ProbeDies(Good):
    """Its library kills the process that asks it."""
    name = "probe-dies"
    def probe(self):
        os.kill(os.getpid(), signal.SIGKILL)


ALL = (ProbeDies, OddFacts, OddWords, OddDetail, FirstSlow, Threads, Downgrade, Good,
       Sleeper, Stubborn, Grandchild, Leaver, Segfault, Killed, Printer, Exiter, HalfJson, Raiser, Oom, Hog, Nan,
       Dtype, Cached, Ahead, Memo, View, Refuser, Late)
'''


def entry_points() -> dict[str, str]:
    """Name -> `fake_runtimes:Class` of every fake."""
    namespace: dict[str, object] = {}
    exec(compile(FAKES, "fake_runtimes", "exec"), namespace)
    return {kind.name: f"fake_runtimes:{kind.__name__}" for kind in namespace["ALL"]}  # type: ignore[attr-defined]
