"""docs/metrics.md lists every metric under its real name."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse
from support.results import incident_result, make_incident, make_result, step_result

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.finding import Severity
from sentinel.model.record import Event
from sentinel.signals.catalogue import SIGNAL_GROUPS, SIGNALS
from sentinel.signals.key_map import FRAMEWORK_KEYS
from tools.generate.detector_docs import detector_docs
from tools.generate.metrics_reference import metrics_page
from tools.generate.sample_exposition import SAMPLE_NODE, sample_metrics

ROOT = Path(__file__).parents[3]
PAGE = metrics_page(detector_docs())
ROWS = {line.split("|")[1].strip(): line for line in PAGE.splitlines() if line.startswith("| ")}


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
def test_every_signal_has_its_row(signal):
    row = ROWS[f"`{signal.name}`"]

    assert f"| `{signal.metric}` |" in row
    assert signal.help in row
    assert all(f"`{alias}`" in row for alias in signal.aliases)


def test_every_signal_is_under_one_heading():
    assert [s.name for group in SIGNAL_GROUPS.values() for s in group] == list(SIGNALS)
    assert all(f"\n### {title}\n" in PAGE for title in SIGNAL_GROUPS)


def test_every_family_of_an_exposition_has_its_row():
    counters = Counters()
    for count in COUNTER_FAMILIES:
        counters.add(count.family, "one")
    exposition = Exposition(counters, {"kl_blowup": Severity.CRITICAL}, machine=lambda: SAMPLE_NODE)
    attributes = {"framework": "trl", "patch/trl": "off: TypeError in before_step"}
    for result in (
        make_result(Event.START, rank=0, attributes=attributes, values={"save_steps": 500.0}),
        step_result(rank=0, step_time=0.5),
        step_result(mine=1.0, global_step=1.0),
        make_result(Event.SAVE),
        make_result(
            Event.HEARTBEAT, values={"ranks_running": 1.0, "ranks_gone": 0.0, "ranks_failed": 0.0}
        ),
        incident_result(of=make_incident()),
    ):
        exposition.update(result)
    text = generate_latest(exposition.registry).decode()
    names = {
        family.name if family.type == "histogram" else sample.name
        for family in parse(text)
        for sample in family.samples
    }

    metrics = {signal.metric for signal in SIGNALS.values()}
    assert {name for name in names if f"`{name}`" not in ROWS} <= metrics
    assert {name for name in metrics if f"`{name}`" in ROWS} == set()


def test_every_family_has_a_sample_for_its_labels():
    assert [family.name for family in sample_metrics() if not family.samples] == []


def test_every_framework_key_has_its_row():
    for (framework, algorithm), words in FRAMEWORK_KEYS.items():
        for key, word in words.items():
            cells = (framework, algorithm, f"`{key}`", f"`{word.name}`")
            assert "|".join(f" {cell} " if cell else " " for cell in cells) in PAGE


def test_the_map_leads_to_it():
    assert "(metrics.md)" in (ROOT / "docs/index.md").read_text(encoding="utf-8")
