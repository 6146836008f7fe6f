"""Reads the GPUs of this node through NVML, the management library of NVIDIA's driver.

`pynvml`, from the package nvidia-ml-py, is imported at the first read, and only in the agent.
Values that a GPU or its driver does not support are omitted.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.signals.hardware import Gpu

MAX_EVENTS_PER_READ = 64
"""Driver events collected in one read."""

_THROTTLE_BITS = {
    "power_cap": 0x4,
    "slowdown": 0x8,
    "thermal_software": 0x20,
    "thermal_hardware": 0x40,
    "power_brake": 0x80,
}
"""Bits of NVML's clock event reasons that mean reduced performance."""

DRIVER_PATHS = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Any of these exists where there is a driver: in the kernel, in a container, under WSL."""


class NvmlNotInstalledError(RuntimeError):
    """The optional package that reads GPUs is not installed."""


@dataclass
class NvmlReader:
    """Reads every GPU of the driver. `library` replaces the module `pynvml` in tests.

    Without any of `driver_paths` there are no GPUs, and `pynvml` is not needed. A call may raise
    and may hang, so it runs in a thread of its own.
    """

    library: Any = None
    driver_paths: Sequence[Path] = DRIVER_PATHS
    _devices: list[Any] = field(default_factory=list)
    _event_set: Any = None
    _last_xids: dict[int, float] = field(default_factory=dict)
    _is_open: bool = False

    def read_gpus(self) -> list[Gpu]:
        """Each GPU's current state. Raises NvmlNotInstalledError, or NVML's error if it fails."""
        if self.library is None and not any(driver.exists() for driver in self.driver_paths):
            return []
        if not self._is_open:
            self._open()
        try:
            self._collect_xid_events()
            gpus = [self._read_gpu(index, device) for index, device in enumerate(self._devices)]
        except Exception:
            self._close()
            raise
        if gpus and all(gpu.is_lost for gpu in gpus):
            # The driver was unloaded or replaced, or every GPU is lost.
            self._close()
        return gpus

    def _open(self) -> None:
        if self.library is None:
            self.library = _import_pynvml()
        self.library.nvmlInit()
        self._is_open = True
        count = self.library.nvmlDeviceGetCount()
        self._devices = [self._device_handle(index) for index in range(count)]
        with suppress(self.library.NVMLError):
            self._event_set = self.library.nvmlEventSetCreate()
        for index, device in enumerate(self._devices):
            with suppress(self.library.NVMLError):
                self._register_xid_events(index, device)

    def _device_handle(self, index: int) -> Any:
        with suppress(self.library.NVMLError):
            return self.library.nvmlDeviceGetHandleByIndex(index)
        return None

    def _register_xid_events(self, index: int, device: Any) -> None:
        if self._event_set is None or device is None:
            return
        kind = self.library.nvmlEventTypeXidCriticalError
        self.library.nvmlDeviceRegisterEvents(device, kind, self._event_set)
        self._last_xids.setdefault(index, 0.0)

    def _collect_xid_events(self) -> None:
        """Store the driver's events since the last read; never waits for more."""
        if self._event_set is None:
            return
        for _ in range(MAX_EVENTS_PER_READ):
            try:
                event = self.library.nvmlEventSetWait_v2(self._event_set, 0)
            except self.library.NVMLError:
                # No more events are reported as a timeout.
                return
            # Matched by handle, since a lost GPU does not return its index.
            address = _handle_address(event.device)
            for index, device in enumerate(self._devices):
                if device is not None and _handle_address(device) == address:
                    self._last_xids[index] = float(event.eventData)

    def _close(self) -> None:
        with suppress(self.library.NVMLError):
            if self._event_set is not None:
                self.library.nvmlEventSetFree(self._event_set)
        with suppress(self.library.NVMLError):
            self.library.nvmlShutdown()
        self._devices, self._event_set, self._is_open = [], None, False

    def _read_gpu(self, index: int, device: Any) -> Gpu:
        if device is None:
            return Gpu(index, values=self._xid_value(index))
        throttled = self._query(lambda: self._throttle_reasons(device), None)
        values = self._values(device) | self._xid_value(index)
        if throttled is not None:
            values["gpu_throttled"] = float(bool(throttled))
        return Gpu(
            index,
            self._query(lambda: _decode(self.library.nvmlDeviceGetUUID(device)), ""),
            self._query(lambda: _decode(self.library.nvmlDeviceGetName(device)), ""),
            values,
            throttled or (),
            self._query(lambda: self._pids(device), frozenset()),
        )

    def _values(self, device: Any) -> dict[str, float]:
        nvml = self.library
        memory = self._query(lambda: nvml.nvmlDeviceGetMemoryInfo(device), None)
        queries: dict[str, Callable[[], float]] = {
            "gpu_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100.0,
            "gpu_power": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000.0,
            "gpu_temperature": lambda: nvml.nvmlDeviceGetTemperature(
                device, nvml.NVML_TEMPERATURE_GPU
            ),
            "gpu_ecc_errors": lambda: nvml.nvmlDeviceGetTotalEccErrors(
                device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        }
        values = {name: self._query(call, None) for name, call in queries.items()}
        if memory is not None:
            values |= {"gpu_memory_used": memory.used, "gpu_memory_total": memory.total}
        return {name: float(value) for name, value in values.items() if value is not None}

    def _xid_value(self, index: int) -> dict[str, float]:
        """The newest XID error code; empty if the driver reports no events."""
        return {"gpu_xid": self._last_xids[index]} if index in self._last_xids else {}

    def _throttle_reasons(self, device: Any) -> tuple[str, ...]:
        nvml = self.library
        # The name since driver 535; older drivers and libraries have only the older name.
        query = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        bits = None if query is None else self._query(lambda: query(device), None)
        if bits is None:
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
        return tuple(reason for reason, bit in _THROTTLE_BITS.items() if bits & bit)

    def _pids(self, device: Any) -> frozenset[int]:
        running = self.library.nvmlDeviceGetComputeRunningProcesses(device)
        return frozenset(process.pid for process in running)

    def _query(self, call: Callable[[], Any], default: Any) -> Any:
        try:
            return call()
        except self.library.NVMLError:
            return default


def _import_pynvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        message = "pynvml is not installed: pip install 'train-sentinel[gpu]'"
        raise NvmlNotInstalledError(message) from None


def _handle_address(device: Any) -> int | None:
    """The address that a handle points to, which is equal for two handles of one device."""
    try:
        return ctypes.cast(device, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return id(device)


def _decode(value: str | bytes) -> str:
    """The text; old versions of the library return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
