"""The checks accept what keeps a contract, and name the rule that something else violates."""

import json
import re
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import ClassVar

import pytest
from pydantic import SecretStr

from sentinel.detectors.kl_blowup import KlBlowup
from sentinel.model.clean_text import clean
from sentinel.model.delivery import HttpRequest
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.message import build_message
from sentinel.model.record import Event
from sentinel.testing import check_detector, check_sink, event, first_finding, steps

DOCSTRING = """High: the loss is over a limit.

Formula
    loss > `limit`

Units
    As the loss.

Source
    None.

Defaults
    Any.
"""


@dataclass
class High:
    limit: float = 10.0

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = "Lower it."

    def update(self, record):
        return Finding("Too high.") if record.values["loss"] > self.limit else Clear()


def detector_class(monkeypatch, doc=DOCSTRING, **changes):
    """The detector above with changed attributes, in a module of its own."""
    module = ModuleType("a_plug_in")
    module.__doc__ = doc
    kind = type("High", (High,), {"__module__": "a_plug_in", **changes})
    kind = dataclass(kind)
    module.High = kind
    monkeypatch.setitem(sys.modules, "a_plug_in", module)
    return kind


def test_a_valid_detector_passes(monkeypatch):
    check_detector(detector_class(monkeypatch))


def _unbounded(self, record):
    self.__dict__.setdefault("seen", []).append(record.step)


def _modifying(self, record):
    record.values["loss"] = 0.0


def _with_global_state(self, record):
    GlobalState.count += 1
    return Clear() if GlobalState.count % 3 else None


class GlobalState:
    count = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"needs": frozenset({"lossy"})}, "needs .'lossy'., which are not in the catalogue"),
        ({"severity": "warning"}, "must have a severity"),
        ({"remedy": "lower it"}, "remedy in whole sentences"),
        ({"__annotations__": {"knob": int}, "knob": 3}, "must document its setting `knob`"),
        ({"__annotations__": {"limit": float}, "limit": field()}, "default for every setting"),
        ({"update": _modifying}, "must not modify the record"),
        ({"update": lambda _, r: 1 / r.values["loss"]}, "must accept extreme values"),
        (
            {"needs": frozenset(), "update": lambda _, r: r.values["x"]},
            "accept extreme values|accept every event",
        ),
        ({"update": lambda *_: True}, "must return a Finding, a Clear or None"),
        ({"update": lambda *_: Finding("no sentence")}, "in a sentence"),
        ({"update": lambda _, r: Finding("X.", onset_step=r.step + 1)}, "in the future"),
        ({"update": lambda *_: Finding("X.", {"a": [1]})}, "numbers or strings"),
        ({"update": lambda *_: Finding("X.", {"joint_evidence": 8.0})}, "in words of a reader"),
        ({"remedy": "Try a lower {learning rate}."}, "an article before the name of a setting"),
        ({"update": _with_global_state}, "must continue unchanged from a snapshot"),
        ({"update": _unbounded}, "must have bounded state"),
        ({"events": frozenset({Event.EVAL})}, "must declare to receive Event.START"),
        ({"steps_with": frozenset({"reward"})}, "must declare to receive Event.STEP"),
    ],
)
def test_the_violated_rule_is_named(monkeypatch, changes, message):
    kind = detector_class(monkeypatch, **changes)

    with pytest.raises(AssertionError, match=message):
        check_detector(kind)


def test_a_docstring_without_its_sections_is_refused(monkeypatch):
    kind = detector_class(monkeypatch, doc="High.\n\nFormula\n    `limit`")

    with pytest.raises(AssertionError, match=r"must document .*Units"):
        check_detector(kind)


def test_a_second_public_class_in_the_file_is_refused(monkeypatch):
    kind = detector_class(monkeypatch)
    sys.modules["a_plug_in"].Other = type("Other", (), {"__module__": "a_plug_in"})

    with pytest.raises(AssertionError, match="only public class of its file"):
        check_detector(kind)


def test_steps_builds_one_record_per_value_and_leaves_out_none():
    records = list(steps(first=10, every=5, loss=[1.0, 2.0], reward=[None, 0.5]))

    assert [(r.step, r.values) for r in records] == [
        (10, {"loss": 1.0}),
        (15, {"loss": 2.0, "reward": 0.5}),
    ]


def test_steps_refuses_series_of_different_lengths():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        list(steps(loss=[1.0], reward=[1.0, 2.0]))


def test_a_detector_does_not_process_a_record_that_lacks_a_needed_value():
    assert first_finding(KlBlowup(), [event(Event.STEP, 1, loss=1.0)]) == (None, None)


@dataclass
class Chat:
    """A sink as a newcomer may write it: `url` is the URL of the webhook."""

    url: SecretStr = field(default_factory=lambda: SecretStr("https://chat.example/CANARY-URL"))

    can_update: ClassVar[bool] = False
    escapes: ClassVar[dict[str, str]] = {"@": "\uff20", "<": "\\<"}

    def render(self, notification, delivery_id, receipt):
        text = build_message(notification, notification.time).text.splitlines()
        lines = [clean(line, 2000, self.escapes) for line in text[:20]]
        body = json.dumps({"content": "\n".join(lines)}, ensure_ascii=False).encode()
        return HttpRequest(self.url.get_secret_value(), body)

    def is_accepted(self, response):
        return response.status == 204

    def receipt(self, response):
        return None


def sink(**changes):
    return dataclass(type("Chat", (Chat,), {"__doc__": Chat.__doc__, **changes}))()


def _unescaped(self, notification, delivery_id, receipt):
    body = json.dumps({"content": notification.incident.finding.summary}).encode()
    return HttpRequest(self.url.get_secret_value(), body)


def _unbounded_body(self, notification, delivery_id, receipt):
    text = clean(notification.incident.finding.summary, None, Chat.escapes) * 20
    return HttpRequest(self.url.get_secret_value(), json.dumps({"content": text}).encode())


def _with_url(self, notification, delivery_id, receipt):
    request = Chat.render(self, notification, delivery_id, receipt)
    url = json.dumps({"url": self.url.get_secret_value()})[:-1]
    return replace(request, body=request.body.replace(b"{", f"{url}, ".encode(), 1))


def _counted(self, notification, delivery_id, receipt):
    self.__dict__["count"] = self.__dict__.get("count", 0) + 1
    request = Chat.render(self, notification, delivery_id, receipt)
    return replace(request, body=request.body.replace(b"{", b'{"n": %d, ' % self.count, 1))


def test_a_valid_sink_passes():
    check_sink(sink())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"__doc__": "A sink."}, "must document its setting `url`"),
        ({"can_update": None}, "must declare can_update"),
        ({"escapes": {}}, "must escape its texts"),
        ({"render": _unescaped}, "must escape its texts"),
        ({"render": _unbounded_body}, "must send at most 65536 bytes"),
        ({"render": _with_url}, "must not send its URL as text"),
        ({"render": _counted}, "must render a repeat the same"),
        ({"is_accepted": lambda self, response: True}, "must not accept the status 301"),
        ({"receipt": lambda self, response: 5}, "must return a receipt"),
    ],
)
def test_an_invalid_sink_is_refused_by_the_rule_that_it_violates(changes, rule):
    with pytest.raises(AssertionError, match=re.escape(rule)):
        check_sink(sink(**changes))
