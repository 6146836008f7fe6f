"""A fake of the module `pynvml`, with its names, units and errors."""

# ruff: noqa: N802 - names of pynvml

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Event
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """Base class of NVML errors, as in pynvml."""


@dataclass
class Card:
    """One GPU as the driver reports it. A value of None is unsupported."""

    uuid: str | bytes = "GPU-aaaa"
    name: str | bytes = "H100"
    utilisation: int | None = 50
    used: int = 30 * 2**30
    total: int = 80 * 2**30
    milliwatts: int | None = 350_000
    celsius: int | None = 60
    ecc: int | None = 0
    reasons: int | None = 0
    pids: tuple[int, ...] = ()
    lost: bool = False


@dataclass
class FakeNvml:
    """Reports `cards`. nvmlInit raises `refusal`; calls wait for the event `held`, if set."""

    cards: list[Card] = field(default_factory=lambda: [Card()])
    events: deque[tuple[int, int]] = field(default_factory=deque)
    refusal: Exception | None = None
    listens: bool = True
    held: Event | None = None
    opened: int = 0
    NVMLError: type[Exception] = NVMLError
    NVML_TEMPERATURE_GPU: int = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED: int = 1
    NVML_VOLATILE_ECC: int = 0
    nvmlEventTypeXidCriticalError: int = 8  # noqa: N815 - as theirs

    def nvmlInit(self) -> None:
        if self.refusal:
            raise self.refusal
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._asked(self.cards[index])

    def nvmlDeviceGetUUID(self, card: Card) -> str | bytes:
        return self._asked(card).uuid

    def nvmlDeviceGetName(self, card: Card) -> str | bytes:
        return self._asked(card).name

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        return SimpleNamespace(gpu=_supported(self._asked(card).utilisation), memory=1)

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        card = self._asked(card)
        return SimpleNamespace(total=card.total, used=card.used, free=card.total - card.used)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return _supported(self._asked(card).milliwatts)

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return _supported(self._asked(card).celsius)

    def nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, since: int) -> int:
        assert (kind, since) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        return _supported(self._asked(card).ecc)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return _supported(self._asked(card).reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self._asked(card).pids]

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlEventSetFree(self, events: str) -> None:
        assert events == "events"

    def nvmlDeviceRegisterEvents(self, card: Card, kind: int, events: str) -> None:
        assert (kind, events) == (self.nvmlEventTypeXidCriticalError, "events")
        if not self.listens:
            raise NVMLError("Not Supported")

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        assert (events, milliseconds) == ("events", 0), "the agent never waits for an event"
        if not self.events:
            raise NVMLError("Timeout")
        index, xid = self.events.popleft()
        return SimpleNamespace(device=self.cards[index], eventType=8, eventData=xid)

    def _asked(self, card: Card) -> Card:
        if self.held is not None:
            self.held.wait()
        if card.lost:
            raise NVMLError("GPU is lost")
        return card


def _supported(value: Any) -> Any:
    if value is None:
        raise NVMLError("Not Supported")
    return value
