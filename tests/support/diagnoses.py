"""What the pipeline concludes of a run, with every detector and cause at its defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sentinel.config.plugins import load_classes
from sentinel.config.settings import build_causes
from sentinel.model.counters import Counters
from sentinel.model.diagnosis import CaseContext, Cause, Diagnosis, Symptom
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.diagnose import assess
from sentinel.pipeline.pipeline import Pipeline

RUN = "run"

Metadata = Mapping[str, float | str]


def make_context(
    metadata: Metadata | None = None, values: Mapping[str, float] | None = None, **onsets: int
) -> CaseContext:
    """Warnings by detector, each with the step of its onset: `make_context(loss_spike=10)`."""
    symptoms = {
        name: Symptom(name, Severity.WARNING, onset, onset + 5, f"{name} is off.")
        for name, onset in onsets.items()
    }
    return CaseContext(symptoms, metadata or {}, values or {})


def diagnose(context: CaseContext, causes: Mapping[str, Cause]) -> Diagnosis | None:
    """The diagnosis of a case with that context."""
    return assess(context, causes).diagnosis


def decaying_loss(seed: int, count: int) -> np.ndarray:
    """A loss that decays as a power of the step, with 3 % noise; no detector fires on it."""
    noise = np.random.default_rng(seed).lognormal(0, 0.03, count)
    return 3.0 * (1 + np.arange(count) / 50) ** -0.4 * noise


@dataclass
class DiagnosedRun:
    """`notifications` are those that are sent; `cases` the last of each case, by its lead.

    `named_causes` are the causes of all notifications, each with the step of the first.
    """

    notifications: list[Notification] = field(default_factory=list)
    cases: dict[str, Notification] = field(default_factory=dict)
    named_causes: dict[str, int] = field(default_factory=dict)

    @property
    def causes(self) -> list[str]:
        """The cause of each case, in the order they opened; "" where it has none."""
        diagnoses = [notification.diagnosis for notification in self.cases.values()]
        return ["" if each is None else each.cause for each in diagnoses]


def diagnose_run(records: Iterable[Record], metadata: Metadata | None = None) -> DiagnosedRun:
    """Process the combined records of a run, whose settings are `metadata`."""
    pipeline = Pipeline(load_classes("detectors"), Counters(), build_causes())
    run = DiagnosedRun()
    for result in pipeline.process_block((*_metadata_records(metadata or {}), *records)):
        for notification in result.case_notifications:
            run.cases[notification.incident.name] = notification
            if notification.diagnosis is not None:
                run.named_causes.setdefault(notification.diagnosis.cause, notification.step)
            if notification.reason is not NotificationReason.UPDATED:
                run.notifications.append(notification)
    assert not pipeline.engine.error_counts
    return run


def _metadata_records(metadata: Metadata) -> Iterable[Record]:
    numbers = {name: value for name, value in metadata.items() if not isinstance(value, str)}
    texts = {name: value for name, value in metadata.items() if isinstance(value, str)}
    if metadata:
        yield Record(RUN, WHOLE_RUN, 0, 0.0, Event.METADATA, numbers, texts)
