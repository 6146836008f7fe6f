"""Checks of the contracts of detectors and sinks, and records for a detector to process.

def test_my_detector():
    check_detector(MyDetector)
    record, finding = first_finding(MyDetector(), steps(loss=[1.0] * 50 + [9.0] * 10))
    assert record.step == 54

def test_my_sink():
    check_sink(MySink(url="https://example.org/hook"))
"""

from __future__ import annotations

import copy
import email
import email.policy
import inspect
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import cycle
from math import inf, nan
from random import Random
from typing import Any

import numpy as np
from pydantic import SecretStr

from sentinel.model.delivery import (
    AppriseCall,
    Delivery,
    HttpRequest,
    Mail,
    RejectingSink,
    Rejection,
    Response,
    SignedSink,
    Sink,
)
from sentinel.model.diagnosis import Diagnosis, Evidence
from sentinel.model.evidence_text import label_of, split_unit
from sentinel.model.finding import (
    Clear,
    Detector,
    DetectorOutput,
    Finding,
    Severity,
    detector_title,
    receives,
    wanted_baselines,
)
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason, RunContext
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.run_baselines import BASELINE_SETTINGS, RunBaselines
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.layer_statistics import LAYER_STATISTICS
from sentinel.signals.setting_names import with_setting_names

EXTREME_VALUES = (nan, inf, -inf, 0.0, -1.0, 1e308, -1e308)
HEARTBEAT_KEYS = frozenset(
    {
        *("ranks_running", "ranks_gone", "ranks_failed", "idle_seconds", "inactive_seconds"),
        *("nodes", "nodes_lost", "lost_seconds", "store_flooded"),
    }
)
"""Values of heartbeats that a detector can need, besides the signals of the catalogue."""

MAX_REMEDY_SENTENCES = 3

INTERNAL_WORDS = re.compile(
    r"\b(autocorrelation|averaged|block|buffer|consecutive|cusum|ema|joint|noise|nonfinite|sigmas?|"
    r"standard error|threshold|window|z(?! loss))\b",
    re.IGNORECASE,
)
"""Words of an implementation, which evidence does not contain: people read it."""

_NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?%?)"
_CHANGE = re.compile(rf"from {_NUMBER} to {_NUMBER}(?![\d.])")
_NEGATIVE_CHANGE = re.compile(r"(?:rose|risen|fell|fallen|grew|improved|increased) by -")
_VARIABLE_NAME = re.compile(r"\b[a-z]+_[a-z0-9_]+\b")
_CODE = re.compile(r"`[^`]*`")
_DOUBLE_ARTICLE = re.compile(r"\b(?:a|an|the)\s+(?:\w+\s+)?the\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
DOCSTRING_SECTIONS = ["Formula", "Units", "Source", "Defaults"]


def steps(*, first: int = 1, every: int = 1, **series: Sequence[float | None]) -> Iterator[Record]:
    """One record per value: `steps(kl_ref=[0.1, 0.2], loss=[2.0, None])`.

    None leaves a value out. Steps count from `first` by `every`; records are a second apart. Raises
    ValueError if the series differ in length.
    """
    for index, row in enumerate(zip(*series.values(), strict=True)):
        values = {name: x for name, x in zip(series, row, strict=True) if x is not None}
        yield event(Event.STEP, first + index * every, time=float(index), **values)


def event(
    kind: Event, step: int, *, time: float = 0.0, rank: int = WHOLE_RUN, **values: float
) -> Record:
    """One record of the run: `event(Event.SAVE, 500)`, `event(Event.START, 0, save_steps=500)`."""
    return Record(run="run", rank=rank, step=step, time=time, event=kind, values=values)


def first_finding(
    detector: Detector, records: Iterable[Record]
) -> tuple[Record, Finding] | tuple[None, None]:
    """The first record with a finding, and the finding; (None, None) if there is none."""
    for record in records:
        output = update_detector(detector, record)
        if isinstance(output, Finding):
            check_finding(type(detector), output)
            return record, output
    return None, None


def update_detector(detector: Detector, record: Record) -> DetectorOutput:
    """The output of the detector; as in the engine, None if it does not receive the record.

    Baselines that the detector takes are kept with it, so that it has its own.
    """
    if not receives(detector, record.event, record.values.keys()):
        return None
    signals = wanted_baselines(detector)
    if not signals:
        return detector.update(record)
    own: RunBaselines = vars(detector).setdefault("baselines_in_test", RunBaselines())
    return detector.update(record, own.update(record, signals & record.values.keys()))


def check_detector(kind: type[Any]) -> None:
    """Check a detector class against the contract. Raises AssertionError with the violated rule."""
    for check in (
        _check_one_class_per_file,
        _check_declarations,
        _check_docstring,
        _check_extreme_values,
        _check_every_event,
        _check_other_events,
        _check_record_not_modified,
        _check_outputs,
        _check_snapshot_restore,
        _check_bounded_state,
    ):
        check(kind)


def check_finding(kind: type[Any], finding: Finding) -> None:
    """Check the texts of a finding. Raises AssertionError with the violated rule."""
    summary = finding.summary
    _require(summary.endswith("."), kind, "must summarize a finding in a sentence")
    _require(
        not _VARIABLE_NAME.search(_CODE.sub("", summary)),
        kind,
        f"must name no variable in its summary: {summary!r}",
    )
    unchanged = [match[0] for match in _CHANGE.finditer(summary) if match[1] == match[2]]
    _require(not unchanged, kind, f"must not show a change of nothing: {unchanged}")
    _require(
        not _NEGATIVE_CHANGE.search(summary), kind, f"must not show a negative change: {summary!r}"
    )
    for key, value in finding.evidence.items():
        internal = INTERNAL_WORDS.findall(label_of(key))
        _require(not internal, kind, f"must name its evidence {key!r} in words of a reader")
        is_plain = isinstance(value, float | int | str)
        _require(is_plain, kind, "must give numbers or strings as evidence")
        signal = SIGNALS.get(key)
        _require(
            isinstance(value, str)
            or signal is None
            or not signal.unit
            or split_unit(key)[1] is not None,
            kind,
            f"must name the unit in the evidence {key!r}",
        )


def _require(condition: bool, kind: type[Any], rule: str) -> None:
    if not condition:
        raise AssertionError(f"{kind.__name__} {rule}.")


def _check_one_class_per_file(kind: type[Any]) -> None:
    _require(is_dataclass(kind), kind, "must be a dataclass whose fields are its settings")
    module = sys.modules[kind.__module__]
    own = [
        n for n, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == kind.__module__
    ]
    public = [name for name in own if not name.startswith("_")]
    _require(
        public == [kind.__name__],
        kind,
        f"must be the only public class of its file, which has {public}",
    )
    try:
        kind()
    except TypeError as error:
        raise AssertionError(f"{kind.__name__} must have a default for every setting.") from error


def _check_declarations(kind: type[Any]) -> None:
    unknown = set(kind.needs) - SIGNALS.keys() - HEARTBEAT_KEYS
    _require(not unknown, kind, f"needs {sorted(unknown)}, which are not in the catalogue")
    without_baseline = set(wanted_baselines(kind)) - BASELINE_SETTINGS.keys()
    _require(not without_baseline, kind, f"wants baselines of {sorted(without_baseline)}")
    _require(isinstance(kind.severity, Severity), kind, "must have a severity")
    _require(bool(kind.signal), kind, "must name its signal")
    remedy = with_setting_names(kind.remedy.strip(), {})
    _require(remedy.endswith("."), kind, "must have a remedy in whole sentences")
    sentences = len(_SENTENCE_END.split(remedy))
    _require(sentences <= MAX_REMEDY_SENTENCES, kind, "must have a remedy of three sentences")
    double = _DOUBLE_ARTICLE.findall(remedy)
    _require(not double, kind, f"must not put an article before the name of a setting: {double}")
    _require("{" not in remedy, kind, "must name settings in its remedy that exist")
    _require(
        not _VARIABLE_NAME.search(_CODE.sub("", remedy)),
        kind,
        "must put names of settings in its remedy in backticks",
    )


def _check_docstring(kind: type[Any]) -> None:
    doc = sys.modules[kind.__module__].__doc__ or ""
    sections = [line for line in doc.splitlines()[1:] if line and not line.startswith(" ")]
    _require(
        sections == DOCSTRING_SECTIONS,
        kind,
        f"must document {DOCSTRING_SECTIONS}, but its docstring has {sections}",
    )
    _require(bool(detector_title(kind)), kind, "must begin its docstring with a title and a colon")
    for setting in fields(kind):
        name = f"`{setting.name}`"
        _require(name in doc, kind, f"must document its setting {name}")


def _check_record_not_modified(kind: type[Any]) -> None:
    detector = kind()
    for record in _synthetic_run(100):
        before = _copied(record)
        update_detector(detector, record)
        _require(record == before, kind, "must not modify the record")


def _check_extreme_values(kind: type[Any]) -> None:
    _require_no_exception(
        kind, _synthetic_run(600, extreme_share=0.2), "must accept extreme values"
    )


def _check_every_event(kind: type[Any]) -> None:
    events = (event(each, step) for step in range(3) for each in Event)
    _require_no_exception(kind, events, "must accept every event")


def _require_no_exception(kind: type[Any], records: Iterable[Record], rule: str) -> None:
    detector = kind()
    for record in records:
        try:
            update_detector(detector, record)
        except Exception as error:
            message = f"{kind.__name__} {rule}, but raised at {record}."
            raise AssertionError(message) from error


def _check_other_events(kind: type[Any]) -> None:
    """Records that it needs but does not declare to receive must have no effect."""
    detector = kind()
    for record in _synthetic_run(100):
        update_detector(detector, record)
    before = serialize(detector)
    every = dict.fromkeys(SIGNALS, 1.0)
    others = {n: x for n, x in every.items() if n not in getattr(kind, "steps_with", ())}
    for each, values in [*((each, every) for each in Event), (Event.STEP, others)]:
        is_needed = kind.needs <= values.keys() and not wanted_baselines(kind)
        if is_needed and not receives(kind, each, values.keys()):
            output = detector.update(Record("run", WHOLE_RUN, 100, 100.0, each, values))
            is_ignored = output is None and serialize(detector) == before
            _require(is_ignored, kind, f"must declare to receive {each}, as it evaluates it")


def _check_outputs(kind: type[Any]) -> None:
    detector = kind()
    for record in _synthetic_run(600, extreme_share=0.01):
        output = update_detector(detector, record)
        is_valid = output is None or isinstance(output, Clear | Finding)
        _require(is_valid, kind, "must return a Finding, a Clear or None")
        if isinstance(output, Finding):
            check_finding(kind, output)
            onset = record.step if output.onset_step is None else output.onset_step
            _require(onset <= record.step, kind, "must not report an onset in the future")


def _check_snapshot_restore(kind: type[Any]) -> None:
    original, restored = kind(), kind()
    for index, record in enumerate(_synthetic_run(400, extreme_share=0.01)):
        _require(
            update_detector(original, record) == update_detector(restored, record),
            kind,
            "must continue unchanged from a snapshot",
        )
        if index % 7 == 0:
            restored = deserialize(serialize(restored), [kind.__module__])


def _check_bounded_state(kind: type[Any]) -> None:
    detector, sizes = kind(), []
    for record in _synthetic_run(6000):
        update_detector(detector, record)
        if record.event is Event.STEP and record.step % 2999 == 0:
            sizes.append(len(serialize(detector)))
    _require(
        sizes[-1] <= 1.1 * sizes[-2] + 200, kind, f"must have bounded state, but has {sizes} bytes"
    )


def _synthetic_run(count: int, extreme_share: float = 0.0) -> Iterator[Record]:
    """A run with every signal and checkpoints; `extreme_share` of its values are extreme.

    In its last third every value is fifty times as high, and every step is saved.
    """
    # A detector may keep a record, or modify it in spite of the contract.
    return map(_copied, _synthetic_records(count, extreme_share))


def _copied(record: Record) -> Record:
    """The synthetic record with values of its own."""
    values = dict(record.values)
    return Record(record.run, record.rank, record.step, record.time, record.event, values)


@cache
def _synthetic_records(count: int, extreme_share: float) -> tuple[Record, ...]:
    """The records of `_synthetic_run`, which are generated once for all detectors."""
    rng = Random(count)  # noqa: S311 - reproducible, not secret
    numbers = np.random.default_rng(count)
    shape = count, len(SIGNALS)
    rows = numbers.normal(1.0, 0.1, shape)
    rows[(np.arange(count) >= count * 2 / 3)] *= 50.0
    is_extreme = numbers.random(shape) < extreme_share
    rows[is_extreme] = numbers.choice(EXTREME_VALUES, is_extreme.sum())
    records = []
    for step, row in enumerate(rows.tolist()):
        is_healthy = step < count * 2 / 3
        values = dict(zip(SIGNALS, row, strict=True))
        values["global_step"] = values["optimizer_steps"] = float(step)
        records.append(Record("run", WHOLE_RUN, step, float(step), values=values))
        if step % 5 == 0:
            records.append(_measured_layers(step, rng, extreme_share, 1.0 if is_healthy else 50.0))
        if step % 10 == 0 or not is_healthy:
            records.append(event(Event.SAVE, step, time=float(step)))
    return tuple(records)


def _measured_layers(step: int, rng: Random, extreme_share: float, level: float) -> Record:
    """A measurement of three layers, of which one has no gradient now and then."""
    values = {
        f"{statistic}/layers.{layer}": rng.choice(EXTREME_VALUES)
        if rng.random() < extreme_share
        else (rng.random() < 0.9) * level * rng.gauss(1.0, 0.1)
        for statistic in LAYER_STATISTICS
        for layer in range(3)
    }
    return Record("run", WHOLE_RUN, step, float(step), Event.LAYERS, values)


MAX_PAYLOAD_BYTES = 65536
"""Most bytes of one delivery."""

HOSTILE_TEXTS = (
    "<!channel> <!here> <@U0123456> <#C01> <!subteam^S1> <https://evil.example|ok>",
    "@everyone @here <@123456789> <@&1234> <#123> [ok](https://evil.example) ~~x~~ ||x||",
    "`code` ```block``` *bold* _italic_ # title > quote",
    "evil\u202egnp.exe \u2066x\u2069 zero\u200bwidth \ufeff\u00ad joiner\u200d",
    "line\nbreak\r\u2028\u2029\x00\x1b[31m\x9b \ud83d",
    "\r\nBcc: everyone@example.org\r\n\r\nbody",
    "</script>&amp;<img src=x onerror=alert(1)> $(reboot) `reboot` %s {0} ${x}",
    "&" * 5000,
    "word " * 1000,
)
"""Texts that a run, a model or a person can contain, and that must have no effect."""

MENTIONS = ("<!channel", "<!here", "<@U", "<#", "<@&", "@everyone", "@here", "<https://evil")
"""What notifies people, or hides an address, in the markup of chats."""

_ESCAPED = re.compile(r"\\.")

REFUSALS = ("", "no", "null", "[]", "{}", '{"ok": false}', "<html>Please log in</html>", "[" * 9000)
"""Responses that accept nothing."""


def check_sink(sink: Sink, *, markup: bool = True) -> None:
    """Check a sink against the contract. Raises AssertionError with the violated rule.

    `markup` is whether the receiver interprets text; a sink that sends plain text or JSON for
    programs need not escape it. The values of secret settings should be distinctive.
    """
    _check_sink_declarations(sink)
    _check_payloads(sink, markup=markup)
    _check_rendering(sink)
    _check_secrets(sink)
    _check_refusals(sink)


def _check_sink_declarations(sink: Sink) -> None:
    kind = type(sink)
    _require(is_dataclass(kind), kind, "must be a dataclass whose fields are its settings")
    for setting in fields(kind):  # type: ignore[arg-type] # checked in the line before
        name = f"`{setting.name}`"
        _require(name in f"{kind.__doc__}", kind, f"must document its setting {name}")
    _require(isinstance(kind.can_update, bool), kind, "must declare can_update as True or False")


def _check_payloads(sink: Sink, *, markup: bool) -> None:
    for notification in _notifications():
        for receipt in (None, "1/2.3") if sink.can_update else (None,):
            for delivery in _deliveries(sink, notification, receipt):
                _check_payload(type(sink), delivery, markup=markup)


def _check_payload(kind: type[Any], delivery: Delivery, *, markup: bool) -> None:
    size = len(_payload(delivery))
    limit = f"must send at most {MAX_PAYLOAD_BYTES} bytes, and something, but sends {size}"
    _require(0 < size <= MAX_PAYLOAD_BYTES, kind, limit)
    if isinstance(delivery, HttpRequest):
        is_ascii = all(f"{name}{text}".isascii() for name, text in delivery.headers.items())
        _require(is_ascii, kind, "must send headers of ASCII characters")
    for text in _texts(delivery):
        hidden = sorted(filter(_is_hidden, set(text)))
        _require(not hidden, kind, f"must clean its texts, but sends {hidden[:3]}")
        unescaped = _ESCAPED.sub("", text)
        found = [mention for mention in MENTIONS if markup and mention in unescaped]
        _require(not found, kind, f"must escape its texts, but sends {found}")


def _check_rendering(sink: Sink) -> None:
    kind = type(sink)
    opened, resolved = _notification(NotificationReason.OPENED), _resolved()
    before, first = copy.deepcopy(opened), sink.render(opened, "a" * 32, None)
    _require(opened == before, kind, "must not modify the notification")
    _require(first == sink.render(before, "a" * 32, None), kind, "must render a repeat the same")
    closing = sink.render(resolved, "a" * 32, None)
    _require(_payload(first) != _payload(closing), kind, "must render a resolution as such")
    shown, expected = "\n".join(_texts(first)), ("KL is 2 nats", "Raise", "a-run")
    missing = [each for each in expected if each not in shown.replace("\\", "")]
    _require(not missing, kind, f"must show finding, remedy and run, but {missing} are missing")


def _check_secrets(sink: Sink) -> None:
    kind = type(sink)
    values = [getattr(sink, each.name) for each in fields(kind)]  # type: ignore[arg-type]
    secrets = [each.get_secret_value() for each in values if isinstance(each, SecretStr)]
    deliveries = _deliveries(sink, _notification(NotificationReason.OPENED), None)
    printed = "".join(f"{each!r}{each}" for each in (sink, *deliveries))
    _require(not any(each in printed for each in secrets), kind, "must print no secret")
    content = b"".join(_payload(each) for each in deliveries).decode()
    urls = [each for each in secrets if "://" in each]
    _require(not any(each in content for each in urls), kind, "must not send its URL as text")


def _check_refusals(sink: Sink) -> None:
    kind = type(sink)
    for status in (0, 301, 400, 404, 429, 500, 503):
        for body in REFUSALS:
            response = Response(status, body, error="" if status else "ConnectionError")
            is_accepted = not response.error and status >= 300 and sink.is_accepted(response)
            _require(not is_accepted, kind, f"must not accept the status {status}")
            receipt = sink.receipt(response)
            _require(receipt is None or isinstance(receipt, str), kind, "must return a receipt")
            if isinstance(sink, RejectingSink):
                reason = sink.rejection(response)
                is_reason = reason is None or isinstance(reason, Rejection)
                _require(is_reason, kind, "must return a Rejection or None")


def _deliveries(sink: Sink, notification: Notification, receipt: str | None) -> list[Delivery]:
    """The delivery as it is sent, and what follows it."""
    delivery = sink.render(notification, "0123456789abcdef" * 2, receipt)
    if not isinstance(delivery, HttpRequest):
        return [delivery]
    if isinstance(sink, SignedSink):
        delivery = sink.sign(delivery, 1_700_000_000.0)
    return [delivery] if delivery.follow_up is None else [delivery, delivery.follow_up]


def _payload(delivery: Delivery) -> bytes:
    if isinstance(delivery, HttpRequest):
        return delivery.body
    if isinstance(delivery, Mail):
        return delivery.message
    if isinstance(delivery, AppriseCall):
        return f"{delivery.title}\n{delivery.body}".encode()
    return delivery.stdin


def _texts(delivery: Delivery) -> list[str]:
    """The lines that people read. The object `sentinel` of a body is for programs."""
    if isinstance(delivery, Mail):
        mail = email.message_from_bytes(delivery.message, policy=email.policy.default)
        texts = [f"{value}" for value in mail.values()]
        texts += [part.get_content() for part in mail.walk() if not part.is_multipart()]
    elif isinstance(delivery, AppriseCall):
        texts = [delivery.title, delivery.body]
    else:
        texts = list(_strings(json.loads(_payload(delivery))))
    return [line for text in texts for line in text.replace("\r\n", "\n").split("\n")]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name != "sentinel":
                yield from _strings(item)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def _notifications() -> Iterator[Notification]:
    for reason in NotificationReason:
        for severity in Severity:
            yield _notification(reason, severity=severity, rank=7)
            yield _with_cause(_notification(reason, severity=severity), "policy collapse")
    for text, reason in zip(HOSTILE_TEXTS, cycle(NotificationReason), strict=False):
        yield _notification(reason, text)
        yield _with_cause(_notification(reason, text), text)
    yield from map(_longest, NotificationReason)


def _notification(
    reason: NotificationReason,
    text: str = "",
    *,
    severity: Severity = Severity.CRITICAL,
    rank: int = WHOLE_RUN,
) -> Notification:
    """A notification whose names and texts are `text`, if it is given."""
    evidence: dict[str, float | str] = {"kl": 2.0, "limit": 0.4}
    if text:
        evidence = {
            "nan": nan,
            text: text,
            **{f"{number}{text[:80]}": inf for number in range(300)},
        }
    incident = Incident(
        key=IncidentKey(text or "a-run", rank, text or "kl_blowup"),
        episode=1,
        severity=severity,
        signal=text or "kl_ref",
        remedy=text or "Raise the KL coefficient.",
        finding=Finding(text or "KL is 2 nats.", evidence),
        onset_step=90,
        opened_step=100,
        opened_time=1_700_000_000.0,
        state=IncidentState.FIRING,
        title=text,
    )
    context = RunContext(
        host=text or "gpu-3",
        command=text or "train.py",
        model=text or "Qwen",
        page_url=f"https://gpu-3:13130/{text}",
        dashboard_url=f"https://grafana.example/d/run?var-run={text}",
        runbook_url="https://gpu-3:13130/runbooks/kl_blowup",
        checkpoint_path=text or "/out/checkpoint-80",
    )
    notification = Notification(reason, incident, 120, 1_700_000_060.0, context=context)
    return replace(notification, notes=(text or "Acknowledged by ana.",) * 5)


def _resolved() -> Notification:
    opened = _notification(NotificationReason.RESOLVED)
    closed = replace(
        opened.incident,
        state=IncidentState.RESOLVED,
        resolved_step=120,
        resolved_time=1_700_000_060.0,
    )
    return replace(opened, incident=closed)


def _longest(reason: NotificationReason) -> Notification:
    """A notification whose every text is long, in characters of four bytes."""
    text = "\U0001f525" * 5000
    return _with_cause(_notification(reason, text), text)


def _with_cause(notification: Notification, text: str) -> Notification:
    evidence = tuple(Evidence(0.5, text, step) for step in range(40))
    diagnosis = Diagnosis(text, text, 0.8, Severity.CRITICAL, evidence, f"{text}.", 80)
    return replace(notification, diagnosis=diagnosis, others=(notification.incident,) * 40)
