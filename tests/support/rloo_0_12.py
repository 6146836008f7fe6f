"""RLOO of TRL 0.12.1, which counts each update twice: its records, and what must be sent of them.

`rloo_0_12.jsonl` holds the records of a real training, which `make test-trl-0.12` makes again:
40 updates with `save_steps=15`. Run that with UPDATE_RECORDS=1 to write the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from support.diagnoses import diagnose_run

from sentinel.model.finding import Severity
from sentinel.model.message import build_message
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record

FILE = Path(__file__).with_suffix(".jsonl")
_OF_THE_MACHINE = ("host", "pid", "script", "python")
UPDATES, SAVE_STEPS = 40, 15
REMEDY = (
    "Upgrade TRL, or look for a second place that increments the step counter, such as a callback "
    "that adds to `state.global_step`: huggingface/trl issue 2124 was this. Stop the run before "
    "step 40 (`max_steps`): from then on every step is saved, whatever the save interval is. To "
    'run it as it is, set the checkpoint limit (`save_total_limit`) or `save_strategy="no"`.'
)


def write_records(records: Iterable[Record]) -> None:
    """Write the records of the only rank, one a line, without what describes the machine."""
    rows = [
        {
            "event": each.event.value,
            "step": each.step,
            "time": round(each.time, 3),
            "values": {name: float(f"{value:.4g}") for name, value in each.values.items()},
            "attributes": {
                name: text
                for name, text in each.attributes.items()
                if name not in _OF_THE_MACHINE and not name.startswith("patch/")
            },
        }
        for each in records
    ]
    rows = [row for row in rows if row["values"] or row["attributes"] or row["event"] != "metadata"]
    FILE.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def read_records() -> list[Record]:
    """The recorded training."""
    rows = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return [Record(run="run", rank=0, **row | {"event": Event(row["event"])}) for row in rows]


def check_notifications(records: Iterable[Record]) -> None:
    """The first notification names the counter, 30 steps before the first save that is too many."""
    whole = [replace(each, rank=WHOLE_RUN) for each in records]
    saves = [each.step for each in whole if each.event is Event.SAVE]
    counted = [each.values["global_step"] for each in whole if "global_step" in each.values]

    sent = diagnose_run(whole).notifications

    first = sent[0]
    message = build_message(first, None)
    assert (first.reason, first.incident.severity) == (NotificationReason.OPENED, Severity.WARNING)
    assert message.title == "Step counter faster than the updates"
    assert message.remedy == REMEDY
    expected = "The trainer's step counter advances by 2 per optimizer step instead of by 1."
    assert message.facts == (f"Step {first.onset_step}: {expected}",)
    assert first.step <= 12
    assert saves[:3] == [30, 40, 42]
    assert saves[-1] == max(counted) == 2 * UPDATES
    escalated = next(each for each in sent if each.reason is NotificationReason.ESCALATED)
    assert "Stop the run now: since step 40 (`max_steps`)" in build_message(escalated, None).remedy


def metadata_of(records: Iterable[Record]) -> Mapping[str, float | str]:
    """What the client reported of the configuration."""
    known: dict[str, float | str] = {}
    for each in records:
        if each.event is Event.METADATA:
            known |= {**each.values, **each.attributes}
    return known
