"""Course: what the demo does wrong on purpose, from which step on, and who must tell of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel.demo.delivery import Delivery


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake: `option` orders it from the training script, from `step` on.

    `detectors` are those that must open an incident at that step or later; what follows from it,
    `consequences`, may be told of as well.
    """

    step: int
    option: str
    mistake: str
    detectors: tuple[str, ...]
    consequences: tuple[str, ...] = ()


FAULTS = (
    Fault(
        421,
        "--reload-at",
        "settings read again: learning rate 300 times too high, KL coefficient 1000 times too low",
        ("kl_blowup", "reward_collapse"),
        ("entropy_collapse", "reward_zero_variance"),
    ),
    Fault(
        561,
        "--count-twice-from",
        "step counter moves twice per update, so the run passes its end and saves every 2 steps",
        ("step_stride", "checkpoint_cadence"),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the faults: the page that caught each, those that never came, and the others."""

    caught: dict[str, Delivery]
    missing: tuple[str, ...]
    unexpected: tuple[Delivery, ...]

    @property
    def passed(self) -> bool:
        """Whether every expected page came, and no other."""
        return not self.missing and not self.unexpected


def judge(pages: Iterable[Delivery], faults: Sequence[Fault] = FAULTS) -> Outcome:
    """Hold the pages that opened an incident against the faults.

    A page of the right detector that came before its fault is unexpected, and so is a second
    episode of the same one.
    """
    earliest = {name: fault.step for fault in faults for name in fault.detectors}
    due_from = {name: f.step for f in faults for name in f.consequences} | earliest
    told: set[str] = set()
    caught: dict[str, Delivery] = {}
    unexpected: list[Delivery] = []
    for page in pages:
        if page.reason != "opened":
            continue
        due = due_from.get(page.detector)
        if due is None or page.step < due or page.detector in told:
            unexpected.append(page)
            continue
        told.add(page.detector)
        if page.detector in earliest:
            caught[page.detector] = page
    missing = tuple(name for name in earliest if name not in caught)
    return Outcome(caught, missing, tuple(unexpected))
