"""Source of runtimes on a simulated GPU for whole runs; installed by `make_installer`, never imported here."""

from pathlib import Path

from tests.sweep.fakes import FAKES

# The driver is replaced in the workers only, before a session is loaded there.
ON_GPU = (
    FAKES
    + f"""
import importlib.util
spec = importlib.util.spec_from_file_location("fake_cuda", {str(Path(__file__).parents[1] / "fake_cuda.py")!r})
fake_cuda = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake_cuda)
from attnbench.measure import cuda_driver

CUDA = fake_cuda.FakeCuda(free=1 << 30, sleeps=True)
cuda_driver._load = lambda: CUDA


class OnGpu(Good):
    name = "on-gpu"
    stream = 7

    def probe(self):
        return Probe(available=True, version="1", devices=("cuda:0",))

    class session(Session):
        replays_graph = False

        def bind(self, inputs):
            self.queue = super().bind(inputs)
            CUDA.free -= (8 << 20) * (self.lengths > 8)

            def call():
                self.enqueue()
                self.synchronize()

            return call

        def enqueue(self):
            self.queue()
            CUDA.work(7, 2_000_000)

        def synchronize(self):
            CUDA.wait_until(CUDA.busy_until[7])

        @property
        def stream(self):
            return OnGpu.stream

        def facts(self):
            return Facts(runtime_version="1", device="cuda:0", device_name="simulated", threads=1,
                         compute_precision="fp32")


class WrongStream(OnGpu):
    name = "wrong-stream"

    class session(OnGpu.session):
        stream = 8


class HostOnly(OnGpu):
    name = "host-only"

    class session(OnGpu.session):
        @property
        def stream(self):
            raise AttributeError


class Grows(OnGpu):
    '''Takes 64 KiB of the device for every token, until there is none.'''
    name = "grows"

    class session(OnGpu.session):
        def bind(self, inputs):
            call = super().bind(inputs)
            CUDA.free = (1 << 30) - 65536 * self.lengths
            if CUDA.free < 0:
                raise RuntimeError("CUDA out of memory. Tried to allocate more than there is")
            return call


class Exclusive(OnGpu):
    '''On a GPU that admits one process; a worker holds it until it ends.'''
    name = "exclusive"

    @contextmanager
    def load(self, problem, artifact, settings):
        import fcntl
        self.device = open(os.path.join(os.path.dirname(__file__), "gpu"), "a+")
        try:
            fcntl.flock(self.device, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")
        self.device.write(f"{{os.getpid()}}\\n")
        self.device.flush()
        yield self.session(problem, settings, self.hook)


class Other(Exclusive):
    name = "other"


class LateOnGpu(Exclusive):
    '''Right when checked, wrong in the calls that are timed.'''
    name = "late-on-gpu"

    class session(OnGpu.session):
        calls = 0

        def enqueue(self):
            super().enqueue()
            self.calls += 1
            if self.calls > 30:
                self.out = self.out * 1.1
"""
)
