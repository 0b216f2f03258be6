"""What was seen of the GPU that a row ran on, in sentences; nothing for rows of the CPU."""

from collections.abc import Iterator
from typing import Any

from attnbench.records import Record
from attnbench.report import text

_CLOCKS = {"sm_clock_mhz": ("SM clock", "MHz"), "memory_clock_mhz": ("memory clock", "MHz"),
           "power_w": ("power", "W"), "temperature_c": ("temperature", "°C")}  # fmt: skip


def device_lines(record: Record) -> Iterator[str]:
    """Clocks and power over the visits, what held them down, who else was there, torch's own peak."""
    facts = record.facts
    if clocks := facts.get("device_clocks"):
        yield f"Read after {clocks['readings']} visits: {_ranges(clocks)}."
        if clocks["throttled_readings"]:
            reasons = ", ".join(clocks["throttle_reasons"])
            yield f"The GPU held its clocks down after {clocks['throttled_readings']} of them: {reasons}."
    elif (monitor := facts.get("device_monitor")) not in (None, "NVML"):
        yield f"Clocks and power are not known: {monitor}."
    if sharing := facts.get("device_sharing"):
        if "device_shared" in record.flags:
            yield f"The device was shared, so its peak memory may be another's: {sharing}."
        else:
            yield f"Whether the device was shared is not known: {sharing}."
    if peak := facts.get("device_allocator_peak_bytes"):
        yield f"By torch's own count the peak is {text.fmt_bytes(peak)}."


def _ranges(clocks: dict[str, Any]) -> str:
    said = []
    for name, (word, unit) in _CLOCKS.items():
        if name in clocks:
            least, most = clocks[name]
            said.append(f"{word} {least:g}{f' to {most:g}' if most != least else ''} {unit}")
    return ", ".join(said) or "this GPU tells nothing of it"
