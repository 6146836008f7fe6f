"""The set-up of a run: what each check of its training found, and facts of its configuration.

The checks are those that a detector names by its attribute `check`, also one of a plug-in.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from sentinel.config import plugins
from sentinel.detectors._training_check import ReportedCheck
from sentinel.model.evidence_text import evidence_text
from sentinel.model.finding import Detector
from sentinel.model.incident import Resolution
from sentinel.model.number_ranges import ranges_text
from sentinel.model.quantity_text import format_number
from sentinel.model.record import CHECK, CHECK_KEY, LOSSES_KEY, PROBLEM_KEY, Record
from sentinel.signals.run_metadata import ACTIVE_DROPOUT_KEY, CHECKS_KEY, PATCH_KEY_PREFIX
from sentinel.store.history import History

FOUND, PASSED, NOT_CHECKED = RESULTS = ("found", "passed", "not checked")
"""Results of a check, in the order in which they are shown."""

FACTS: Mapping[str, str] = {
    "world_size": "Ranks",
    "framework": "Framework",
    "torch": "PyTorch",
    "algorithm": "Algorithm",
    "model": "Model",
    "model_parameters": "Parameters",
    "trained_parameters": "Trained share",
    "modules_without_gradient": "Trained without a gradient",
    "modules_without_optimizer": "Gradients that no optimizer uses",
    "parameter_types": "Parameter types",
    ACTIVE_DROPOUT_KEY: "Active dropout",
    "peft_type": "Adapter",
    "strategy": "Strategy",
    "zero_stage": "ZeRO stage",
    "precision": "Precision",
    "mixed_precision": "Mixed precision",
    "bf16": "bfloat16",
    "fp16": "float16",
    "dtype": "Data type",
    "gradient_checkpointing": "Gradient checkpointing",
    "optimizers": "Optimizer",
    "learning_rate": "Learning rate",
    "lr_scheduler_type": "Learning-rate schedule",
    "per_device_train_batch_size": "Batch size of a rank",
    "gradient_accumulation_steps": "Gradient accumulation",
    "accumulate_grad_batches": "Gradient accumulation",
    "max_grad_norm": "Gradient clipping",
    "gradient_clip_val": "Gradient clipping",
}
"""Labels of the metadata that are facts of the set-up, in the order in which they are shown."""

_PLACE_KEYS = frozenset({"rank", "first_rank", "ranks", CHECK_KEY, LOSSES_KEY, PROBLEM_KEY})
"""What is no evidence in the values and attributes of a report."""


def read_set_up(connection: sqlite3.Connection) -> dict[str, Any]:
    """Keys: checks, with what was found first, and facts.

    A check has check, detector, result (one of `RESULTS`), severity, step, evidence and remedy;
    severity and remedy are empty unless a problem was found, and step is None if nothing was
    reported. `not checked` is one on which no rank reported in the newest attempt and training; its
    evidence is the reason. There are no checks of a run that was read from a log. A fact has name
    and value, as texts.
    """
    history = History(connection)
    metadata = history.run_metadata.as_dict()
    states = {key: str(text) for (key, _), text in history.run_metadata.patch_states.items()}
    records = defaultdict[str, list[Record]](list)
    for record in history.check_records():
        records[record.attributes.get(CHECK_KEY, "")].append(record)
    problems = open_problems(history)
    checks = []
    # A client reports its process.
    is_live = "pid" in metadata or bool(records)
    for name, kind in plugins.load_classes("detectors").items() if is_live else ():
        if check := check_name(kind):
            result = (
                problems.get(name)
                or _passed(records[check])
                or _not_checked(name, kind, records[check], {**states, **metadata})
            )
            checks.append({"check": check, "detector": name, **result})
    checks.sort(key=lambda each: (RESULTS.index(each["result"]), each["check"]))
    return {"checks": checks, "facts": [*_facts(metadata)]}


def _result(
    result: str, evidence: str, step: int | None = None, severity: str = "", remedy: str = ""
) -> dict[str, Any]:
    return {
        "result": result,
        "severity": severity,
        "step": step,
        "evidence": evidence,
        "remedy": remedy,
    }


def check_name(detector: type[Detector]) -> str:
    """The check whose reports a detector of that class evaluates; empty if it evaluates none."""
    is_check = CHECK in getattr(detector, "events", ())
    return str(getattr(detector, "check", "")) if is_check else ""


def open_problems(history: History, until: float = inf) -> dict[str, dict[str, Any]]:
    """What detectors found in the newest attempt and training and is not over, by detector.

    Each is a result as in `read_set_up`. What opened after `until`, in seconds since the epoch, is
    left out.
    """
    began = history.began()
    newest = {
        each["detector"]: each
        for each in reversed(history.incidents())
        if began <= each["opened_time"] <= until
    }
    return {
        name: _result(FOUND, each["summary"], each["opened_step"], each["severity"], each["remedy"])
        for name, each in newest.items()
        if each["resolution"] != Resolution.CLEARED.value
    }


def _passed(records: Sequence[Record]) -> dict[str, Any] | None:
    """The result if the newest report of each rank is that the check passed; else None."""
    reports = {_rank(each): each for each in records if PROBLEM_KEY in each.attributes}
    reports = reports or _compared(records)
    if not reports or any(each.attributes.get(PROBLEM_KEY) for each in reports.values()):
        return None
    newest = max(reports.values(), key=lambda each: each.step)
    ranks = f"rank{'s' if len(reports) > 1 else ''} {ranges_text(reports)}"
    texts = [f"Reported at step {newest.step:,} by {ranks}"]
    values: dict[str, float | str] = {**newest.values, **newest.attributes}
    texts += (evidence_text(key, values[key]) for key in values if key not in _PLACE_KEYS)
    return _result(PASSED, f"{'. '.join(texts)}.", newest.step)


def _compared(evidence: Iterable[Record]) -> dict[int, Record]:
    """The evidence by rank, of the groups of ranks that are complete: a detector compared it."""
    groups = defaultdict[tuple[float, str], dict[int, Record]](dict)
    for each in evidence:
        losses = each.attributes.get(LOSSES_KEY, "")
        groups[each.values.get("first_rank", 0.0), losses][_rank(each)] = each
    return {
        rank: each
        for (_, losses), group in groups.items()
        for rank, each in group.items()
        if len(group) >= (2.0 if losses else each.values.get("ranks", 0.0))
    }


def _not_checked(
    name: str, kind: Any, records: Iterable[Record], metadata: Mapping[str, float | str]
) -> dict[str, Any]:
    """The result of a check of which a detector with that name and class has no result."""
    off = str(metadata.get(f"{PATCH_KEY_PREFIX}check_{kind.check}", ""))
    if off:
        reason = f"An error switched the check off in the trainer: {off.removeprefix('off: ')}."
    elif CHECKS_KEY in metadata:
        reason = "All checks are switched off by `monitor(checks=False)`."
    elif any(each.attributes.get(PROBLEM_KEY) for each in records):
        reason = f"The check reported a problem, but the detector `{name}` is disabled."
    else:
        reason = str(getattr(kind, "unreported", ReportedCheck.unreported))
    return _result(NOT_CHECKED, reason)


def _rank(report: Record) -> int:
    return int(report.values.get("rank", 0.0))


def _facts(metadata: Mapping[str, float | str]) -> Iterator[dict[str, str]]:
    texts = {
        key: format_number(value) if isinstance(value, float) else value
        for key, value in metadata.items()
    }
    if "framework_version" in texts and "framework" in texts:
        texts["framework"] += f" {texts['framework_version']}"
    total, trained = (metadata.get(f"{each}_parameters") for each in ("model", "trained"))
    if isinstance(total, float) and isinstance(trained, float) and total:
        texts["trained_parameters"] = f"{format_number(100.0 * trained / total, 3)}%"
    for key, label in FACTS.items():
        if texts.get(key, "").lower() not in {"", "false"}:
            yield {"name": label, "value": texts[key]}
