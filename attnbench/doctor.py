"""Is this machine right? What it is, which exporters and runtimes work on it, and what to type for the rest."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench import plugins
from attnbench.interfaces import Probe
from attnbench.measure import environment

HARNESS_ITSELF = "null"  # the runtime that measures nothing but the harness
BUSY_LOAD_PER_CPU = 0.5
LOW_MEMORY_BYTES = 4 << 30
SLOWING_VARIABLES = {
    "OPENBLAS_CORETYPE": "can halve NumPy's speed",
    "OPENBLAS_L2_SIZE": "can halve NumPy's speed",
    "LD_PRELOAD": "may change any library",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to know before measuring. A severe one makes the exit code 1."""

    severe: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All that `attnbench doctor` shows."""

    environment: Mapping[str, Any]  # of measure.environment.describe
    exporters: Mapping[str, Probe]
    runtimes: Mapping[str, Probe]
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> int:
        """1 with a severe finding, else 0."""
        return int(any(finding.severe for finding in self.findings))

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**asdict(self), "exit_code": self.exit_code}


def diagnose(timeout_s: float = plugins.PROBE_TIMEOUT_S) -> Diagnosis:
    """Look at the machine and ask every plug-in, each in a child process.

    Raises:
        PluginError: attnbench is not installed, or two distributions declare the same name.
    """
    seen = environment.describe()
    exporters = plugins.probe_all("exporter", timeout_s=timeout_s)
    runtimes = plugins.probe_all("runtime", timeout_s=timeout_s)
    return Diagnosis(
        environment=seen, exporters=exporters, runtimes=runtimes, findings=find_faults(seen, exporters, runtimes)
    )


def find_faults(
    seen: Mapping[str, Any], exporters: Mapping[str, Probe], runtimes: Mapping[str, Probe]
) -> list[Finding]:
    """What is wrong, severe first."""
    faults = [Finding(severe=True, text=text) for text in (*seen["conflicts"], *seen["shadowed"])]
    if not any(answer.available for name, answer in runtimes.items() if name != HARNESS_ITSELF):
        faults.append(Finding(severe=True, text="no runtime works here: nothing can be measured; see the fixes above"))
    if not any(answer.available for answer in exporters.values()):
        faults.append(Finding(severe=True, text="no exporter works here: only the torch runtimes can be measured"))
    hints = [*_variables(seen["variables"]), *_load(seen), *_memory(seen)]
    return faults + [Finding(severe=False, text=text) for text in hints]


def _variables(variables: Mapping[str, str]) -> list[str]:
    found = [
        f"{name}={variables[name]} is set and {harm}; workers are started without it"
        for name, harm in SLOWING_VARIABLES.items()
        if name in variables
    ]
    found += environment.precision_overrides(variables)
    threads = [f"{name}={value}" for name, value in variables.items() if name.endswith("_NUM_THREADS")]
    if threads:
        found.append(f"{', '.join(threads)} is set; workers ignore it and take --threads")
    return found


def _load(seen: Mapping[str, Any]) -> list[str]:
    load, cpus = seen["load_average"], len(seen["machine"]["affinity"] or ()) or seen["machine"]["logical_cpus"]
    if not load or not cpus or load[0] / cpus <= BUSY_LOAD_PER_CPU:
        return []
    return [f"load average {load[0]:.1f} on {cpus} CPUs: something else is running; wait, or expect contended rows"]


def _memory(seen: Mapping[str, Any]) -> list[str]:
    free = seen["memory"]["available_bytes"]
    if free is None or free >= LOW_MEMORY_BYTES:
        return []
    return [f"{_gib(free)} of memory is free: long T will run out of it; close something, or use shorter T"]


def render(diagnosis: Diagnosis, *, width: int, color: bool) -> str:
    """Text for people, in ASCII as far as the machine's own names are, at most `width` columns wide."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
    )

    def heading(text: str) -> None:
        console.print(Text(text, style="bold"))

    def table() -> Table:
        grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        return grid

    heading("machine")
    facts = table()
    for key, value in _machine_rows(diagnosis.environment):
        facts.add_row(Text(f"  {key}"), Text(value))
    console.print(facts)
    for title, answers in (("runtimes", diagnosis.runtimes), ("exporters", diagnosis.exporters)):
        heading(title)
        rows = table()
        for name, answer in answers.items():
            style = "green" if answer.available else "red"
            rows.add_row(Text(f"  {name}", style=style), Text(_verdict(answer, flag=f"--{title}")))
        console.print(rows)
    heading("to know")
    notes = table()
    for finding in diagnosis.findings:
        notes.add_row(Text("  error" if finding.severe else "  note"), Text(finding.text))
    console.print(notes if diagnosis.findings else Text("  nothing stands in the way"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines)


def _verdict(answer: Probe, *, flag: str) -> str:
    if answer.available:
        opt_in = f"  (opt-in: name it with {flag})" if answer.traits.get("opt_in") else ""
        opt_in = "  (for attnbench conform; never timed)" if answer.traits.get("checks_only") else opt_in
        on = f"  on {', '.join(answer.devices)}" if answer.devices != ("cpu",) else ""
        limits = [f"only on the CPU: {answer.no_cuda}"] if answer.no_cuda else []
        limits += [answer.compiles_only] if answer.compiles_only else []
        return "\n".join([f"available  {answer.version}{on}{opt_in}".rstrip(), *limits])
    fix = f"\nfix: {answer.fix}" if answer.fix else ""
    return f"unavailable: {answer.reason or 'it does not say why'}{fix}"


def _machine_rows(seen: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine, memory = seen["machine"], seen["memory"]
    quota = machine["cgroup_cpu_quota"]
    cpus = f"{machine['logical_cpus']} logical, {machine['physical_cores'] or 'unknown'} physical"
    if machine["affinity"]:
        cpus += f", {len(machine['affinity'])} usable"
    if quota is not None:
        cpus += f", limited to {quota:g} by the control group"
    return [
        ("cpu", f"{machine['cpu_model'] or 'unknown'} ({machine['architecture']})"),
        ("cpus", cpus),
        ("virtual machine", machine["hypervisor"] or "no"),
        ("dtypes", ", ".join(machine["hardware_dtypes"]) + " in hardware"),
        ("threads", f"{seen['default_threads']} for every runtime unless --threads says otherwise"),
        ("gpus", _gpus(seen["nvidia"])),
        ("memory", f"{_gib(memory['total_bytes'])}, {_gib(memory['available_bytes'])} free"),
        ("system", f"{seen['os']['system']} {seen['os']['kernel']}, {seen['os']['libc']}".rstrip(", ")),
        ("python", f"{seen['python']['implementation']} {seen['python']['version']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in seen["versions"].items())),
    ]


def _gpus(nvidia: Mapping[str, Any]) -> str:
    """Of NVIDIA: names and driver, or that there are none."""
    if nvidia["driver"] is None:
        return "none: no NVIDIA driver is loaded"
    return f"{', '.join(nvidia['gpus']) or 'none visible'}, NVIDIA driver {nvidia['driver']}"


def _gib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"
