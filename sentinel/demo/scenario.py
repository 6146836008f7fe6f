"""Course: what the demo does wrong on purpose, from which step on, and what must be said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sentinel.demo.delivery import ReceivedNotification


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake: `option` orders it from the training script, from `step` on.

    `cause` is what the one case that tells of it must be put down to in the end.
    """

    step: int
    option: str
    description: str
    cause: str


FAULTS = (
    Fault(
        421,
        "--reload-at",
        "settings read again: learning rate 300 times too high, KL coefficient 1000 times too low",
        "policy_collapse",
    ),
    Fault(
        561,
        "--count-twice-from",
        "step counter moves twice per update, so the run passes its end and saves every 2 steps",
        "step_counted_twice",
    ),
)


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What came of the faults: by cause the page that opened its case; what never came; the rest.

    `causes` has what each case was put down to in the end, by its name; "" is nothing.
    """

    detected: dict[str, ReceivedNotification]
    missing: tuple[str, ...]
    unexpected: tuple[ReceivedNotification, ...]
    causes: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether each fault was told as its one case, and nothing else."""
        return not self.missing and not self.unexpected


def evaluate_demo(
    notifications: Iterable[ReceivedNotification],
    final_causes: Mapping[str, str],
    faults: Sequence[Fault] = FAULTS,
) -> DemoOutcome:
    """Hold the pages that opened a case against the faults.

    `known` is what the agent last put each case down to, by its name: of that no page may tell any
    more. A page that came before its fault is unexpected, and so is a second case of one fault:
    whoever was woken by the first need not be woken by what follows from it.
    """
    told = list(notifications)
    causes = {page.case: page.cause for page in told}
    causes |= {case: cause for case, cause in final_causes.items() if cause}
    earliest = {fault.cause: fault.step for fault in faults}
    caught: dict[str, ReceivedNotification] = {}
    unexpected: list[ReceivedNotification] = []
    for page in told:
        if page.reason != "opened":
            continue
        cause = causes[page.case]
        if cause in caught or page.step < earliest.get(cause, page.step + 1):
            unexpected.append(page)
        else:
            caught[cause] = page
    missing = tuple(cause for cause in earliest if cause not in caught)
    return DemoOutcome(caught, missing, tuple(unexpected), causes)
