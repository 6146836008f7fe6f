"""GPU fault: the driver reports a hardware error.

Formula
    new      = uncorrectable memory errors since the first measurement of the agent
    Finding  = new > 0, or any XID
    critical = the XID means a defective device
    info     = the XID means an error of the program

Units
    XID: the driver's error number. Memory errors: count since the last reset of the GPU.

Source
    NVIDIA's catalogue of XID errors. Defective device: 48 (uncorrectable memory error), 62
    (internal halt), 63 and 64 (row remapping), 74 (NVLink), 79 (fallen off the bus), 92, 94 and 95
    (memory errors: many, contained, uncontained), 119 and 120 (its processor does not answer), 140
    (memory error). Error or end of the program: 13, 31, 43 and 45.

Defaults
    No settings: the driver reports errors, nothing is estimated. Errors from before the agent
    started are ignored. Errors without an XID may belong to a GPU that the run only now uses, and
    are a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import HEARTBEAT, Record

XID_MEANINGS = {
    48: "an uncorrectable memory error",
    62: "an internal halt",
    63: "pending remapping of memory rows",
    64: "failed remapping of memory rows",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "a high rate of corrected memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU system processor does not answer",
    120: "an error of the GPU system processor",
    140: "an uncorrectable memory error",
}
APPLICATION_XIDS = frozenset({13, 31, 43, 45})
TOLERABLE_XIDS = frozenset({63, 92})
"""XIDs of a device that remains usable; check it after the run."""


@dataclass
class GpuFault(DetectorDefaults):
    """Evaluates the driver's error counts in heartbeats."""

    events = frozenset({HEARTBEAT})
    signal = "gpu_xid"
    scope = Scope.PROCESS
    remedy = (
        "Save a checkpoint, and move the run to another node. Find the GPU in the kernel log "
        "(`dmesg | grep -i xid`). Drain the node, reset the GPU, and run `dcgmi diag -r 3`."
    )

    def __post_init__(self) -> None:
        self._baseline_errors: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement of the GPUs."""
        errors, xid = record.values.get("gpu_ecc_errors"), record.values.get("gpu_xid")
        if record.event is not HEARTBEAT or (errors is None and xid is None):
            return None
        new_errors = 0.0 if errors is None else self._new_errors(errors)
        number = 0 if xid is None or not 0 < xid < 10_000 else int(xid)
        if not new_errors and not number:
            return CLEAR
        meaning = XID_MEANINGS.get(number, "see NVIDIA's catalogue")
        xid_text = f"XID {number} ({meaning})" if number else ""
        memory_text = f"{new_errors:.0f} new uncorrectable memory errors" if new_errors else ""
        host = record.attributes.get("gpu_xid_host" if number else "gpu_ecc_errors_host", "")
        where = f" on {host}" if host else ""
        faults = " and ".join(filter(None, (xid_text, memory_text)))
        return Finding(
            summary=f"The GPU driver{where} reports {faults}.",
            evidence={
                "xid": float(number),
                "new_uncorrectable_memory_errors": new_errors,
                **({"host": host} if host else {}),
            },
            severity=_severity(number, new_errors),
        )

    def _new_errors(self, errors: float) -> float:
        """Errors since the first measurement. A lower count means a reset or removed GPU."""
        if errors - errors != 0.0:
            return 0.0
        if self._baseline_errors is None or errors < self._baseline_errors:
            self._baseline_errors = errors
        return errors - self._baseline_errors


def _severity(xid: int, new_errors: float) -> Severity:
    if xid in XID_MEANINGS and xid not in TOLERABLE_XIDS:
        return Severity.CRITICAL
    return Severity.INFO if xid in APPLICATION_XIDS and not new_errors else Severity.WARNING
