"""GPU fault: the driver reports an error of the hardware.

Formula
    grown    = memory errors that could not be corrected, more than when the agent first looked
    Finding  = grown, or any XID
    critical = the XID is one of a broken device
    info     = it is one by which the driver answers an error of the program

Units
    XID: the driver's own number. Memory errors: how many, since the GPU was last reset.

Source
    NVIDIA's catalogue of XID errors. Of a broken device are 48 (memory error that could not be
    corrected), 62 (internal halt), 63 and 64 (row remapping), 74 (NVLink), 79 (fallen off the bus),
    92, 94 and 95 (memory errors, many, contained and not), 119 and 120 (its processor does not
    answer), 140 (memory error). 13, 31, 43 and 45 follow from what a program did, or from its end.

Defaults
    None to choose. The driver tells; nothing is estimated. What was wrong before the agent began
    is not news: errors are counted from its first look on. Errors without an XID may be those of a
    GPU that the run only now computes on, and are a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record

XID_MEANINGS = {
    48: "a memory error that could not be corrected",
    62: "an internal halt of the GPU",
    63: "memory rows to be remapped",
    64: "memory rows that could not be remapped",
    74: "an NVLink error",
    79: "a GPU fallen off the bus",
    92: "many memory errors that were corrected",
    94: "a memory error that was contained",
    95: "a memory error that was not contained",
    119: "no answer of the GPU's own processor",
    120: "an error of the GPU's own processor",
    140: "a memory error that could not be corrected",
}
APPLICATION_XIDS = frozenset({13, 31, 43, 45})
TOLERABLE_XIDS = frozenset({63, 92})
"""Of a device that goes on as it is, and wants a look once the run is over."""


@dataclass
class GpuFault:
    """Judges what a TICK tells of the driver's errors."""

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "gpu_xid"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "See which GPU it is (sentinel_gpu_xid and sentinel_gpu_ecc_errors by gpu, dmesg for Xid), "
        "save a checkpoint, and move the run to another node. Then drain the node, reset the GPU, "
        "and run dcgmi diag -r 3 on it."
    )

    def __post_init__(self) -> None:
        self._baseline_errors: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one look at the GPUs."""
        errors, xid = record.values.get("gpu_ecc_errors"), record.values.get("gpu_xid")
        if record.event is not Event.HEARTBEAT or (errors is None and xid is None):
            return None
        news = 0.0 if errors is None else self._new_errors(errors)
        number = 0 if xid is None or not 0 < xid < 10_000 else int(xid)
        if not news and not number:
            return Clear()
        # The number of another XID says nothing where memory is known to be broken.
        what = f"XID {number} ({XID_MEANINGS.get(number, 'see its catalogue')})" if number else ""
        memory = f"{news:.0f} memory errors that could not be corrected" if news else ""
        host = record.attributes.get("gpu_xid_host" if number else "gpu_ecc_errors_host", "")
        where = f" on {host}" if host else ""
        return Finding(
            summary=f"The driver{where} reports {' and '.join(filter(None, (what, memory)))}.",
            evidence={"xid": float(number), "new_memory_errors": news, **_host_evidence(host)},
            severity=_severity(number, news),
        )

    def _new_errors(self, errors: float) -> float:
        """Errors since the first look; fewer than then means that a GPU was reset or has left."""
        if errors - errors != 0.0:
            return 0.0
        if self._baseline_errors is None or errors < self._baseline_errors:
            self._baseline_errors = errors
        return errors - self._baseline_errors


def _host_evidence(host: str) -> dict[str, str]:
    return {"host": host} if host else {}


def _severity(xid: int, new_errors: float) -> Severity:
    if xid in XID_MEANINGS and xid not in TOLERABLE_XIDS:
        return Severity.CRITICAL
    return Severity.INFO if xid in APPLICATION_XIDS and not new_errors else Severity.WARNING
