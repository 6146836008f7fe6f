"""Scenario of the demo: the injected faults, and the evaluation of the notifications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sentinel.demo.receiver import ReceivedNotification


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that the training script injects from `step` on if it is started with `option`.

    `cause` is the cause that its one case must have in the end.
    """

    step: int
    option: str
    description: str
    cause: str


FAULTS = (
    Fault(
        421,
        "--reload-at",
        "settings reloaded with a learning rate 300 times too high and a KL coefficient 1000 times "
        "too low",
        "policy_collapse",
    ),
    Fault(
        561,
        "--count-twice-from",
        "step counter advances twice per update: the run passes max_steps, saves every 2 steps",
        "step_counted_twice",
    ),
)


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """Result of the demo.

    `detected` has the notification that opened the case of each fault, by cause; `missing` the
    causes without one; `unexpected` every other notification that opened a case. `causes` is the
    final cause of each case by its name; "" is none.
    """

    detected: dict[str, ReceivedNotification]
    missing: tuple[str, ...]
    unexpected: tuple[ReceivedNotification, ...]
    causes: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether each fault was reported as one case, and nothing else was reported."""
        return not self.missing and not self.unexpected


def evaluate_demo(
    notifications: Iterable[ReceivedNotification],
    final_causes: Mapping[str, str],
    faults: Sequence[Fault] = FAULTS,
) -> DemoOutcome:
    """Match the notifications that opened a case with the faults.

    `final_causes` has the last cause of each case by its name; a change of cause need not send a
    notification. A notification before its fault is unexpected, and so is a second case of a fault.
    """
    notifications = list(notifications)
    causes = {notification.case: notification.cause for notification in notifications}
    causes |= {case: cause for case, cause in final_causes.items() if cause}
    fault_steps = {fault.cause: fault.step for fault in faults}
    detected: dict[str, ReceivedNotification] = {}
    unexpected: list[ReceivedNotification] = []
    for notification in notifications:
        if notification.reason != "opened":
            continue
        cause, step = causes[notification.case], notification.step
        if cause in detected or step < fault_steps.get(cause, step + 1):
            unexpected.append(notification)
        else:
            detected[cause] = notification
    missing = tuple(cause for cause in fault_steps if cause not in detected)
    return DemoOutcome(detected, missing, tuple(unexpected), causes)
