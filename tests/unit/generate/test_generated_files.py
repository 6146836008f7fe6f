"""Generated files match the code."""

import re
from pathlib import Path

import pytest
import yaml

from sentinel.config.plugins import load_modules
from tools.generate.__main__ import documents, main, stale_paths, write_documents
from tools.generate.agent_alerts import AGENT_ALERTS
from tools.generate.cause_docs import cause_docs
from tools.generate.detector_docs import detector_docs
from tools.generate.prometheus_rules import rule_groups, yaml_text

ROOT = Path(__file__).parents[3]
DOCUMENTS = documents()
DETECTOR_DOCS = list(detector_docs())
CAUSES = list(cause_docs())
RULES = [
    rule
    for group in yaml.safe_load(DOCUMENTS["deploy/prometheus/rules.yml"])["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("path", DOCUMENTS)
def test_committed_files_are_current(path):
    """Fails if `make generate` was not run after a change."""
    assert (ROOT / path).read_text(encoding="utf-8") == DOCUMENTS[path]


def test_every_detector_has_its_rule_and_its_runbook():
    """A new module is sufficient."""
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}

    assert [doc.name for doc in DETECTOR_DOCS] == sorted(load_modules("detectors"))
    expected = {doc.alert for doc in DETECTOR_DOCS} | {watch.alert for watch in AGENT_ALERTS}
    assert expected | {"SentinelCase"} == alerts
    assert {f"docs/runbooks/{doc.name}.md" for doc in DETECTOR_DOCS} <= DOCUMENTS.keys()


def test_the_rules_are_read_as_they_are_made():
    text = DOCUMENTS["deploy/prometheus/rules.yml"]

    assert yaml.safe_load(text)["groups"] == rule_groups(DETECTOR_DOCS, AGENT_ALERTS)
    assert yaml.safe_load(yaml_text({"a": ["b: c", "", "1", " x", "é\n y\n\n", "d " * 99]})) == {
        "a": ["b: c", "", "1", " x", "é\n y\n\n", "d " * 99]
    }


def test_every_alert_fires_in_a_test_of_the_rules():
    """In a test that promtool executes."""
    firing = set()
    for path in (ROOT / "deploy/prometheus").glob("*_test.yml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            checks = test.get("alert_rule_test", [])
            firing |= {check["alertname"] for check in checks if check["exp_alerts"]}
            queries = (q["expr"] for q in test.get("promql_expr_test", []) if q["exp_samples"])
            firing |= {name for text in queries for name in re.findall(r"alertname=\"(\w+)", text)}

    assert {rule["alert"] for rule in RULES if "alert" in rule} <= firing


def test_no_two_alerts_share_a_name():
    """A detector and a watch of one name could not be annotations apart, nor their runbooks."""
    names = [*(doc.name for doc in DETECTOR_DOCS), *(watch.name for watch in AGENT_ALERTS)]

    assert len(names) == len(set(names))


def test_every_alert_has_a_remedy_and_outlives_its_agent():
    """Each alert is actionable, and is not resolved when its agent is killed."""
    case_rule, *others = (rule for rule in RULES if "alert" in rule)
    assert case_rule["alert"] == "SentinelCase"
    assert "last_over_time(sentinel_case_firing[24h])" in case_rule["expr"]
    for rule in others:
        annotations = rule["annotations"]
        page = annotations["runbook_url"].rpartition("/blob/main/")[2]
        assert page in DOCUMENTS
        assert annotations["description"] in DOCUMENTS[page]
        assert "keep_firing_for" in rule or rule["alert"] == "SentinelWatchdog"


def test_every_recording_rule_has_a_test():
    """In the file of promtool that is shipped beside the rules."""
    tests = yaml.safe_load((ROOT / "deploy/prometheus/rules_recording_test.yml").read_text())
    queries = " ".join(each["expr"] for test in tests["tests"] for each in test["promql_expr_test"])

    assert [rule["record"] for rule in RULES if rule.get("record", "") not in queries] == []


def test_the_alert_of_a_case_links_to_the_runbook_of_its_cause_or_else_of_its_detector():
    url = RULES[0]["annotations"]["runbook_url"]
    (page,) = re.findall(r"/blob/main/(.*?\.md)", url)

    assert re.findall(r"\$labels\.(\w+) }", page) == ["detector", "cause"]
    assert all(f"docs/runbooks/{each.name}.md" in DOCUMENTS for each in CAUSES)
    assert 'part="runbook"' in url


@pytest.mark.parametrize("doc", DETECTOR_DOCS, ids=lambda doc: doc.name)
def test_a_runbook_shows_every_paragraph_and_setting(doc):
    """Nothing of the data doc is lost on the way to its reader."""
    page = DOCUMENTS[f"docs/runbooks/{doc.name}.md"]

    assert doc.paragraphs.keys() >= {"Formula", "Units", "Source", "Defaults"}
    for text in doc.paragraphs.values():
        assert text in page
    for setting, default in doc.settings.items():
        assert f"| `{setting}` | `{default!r}` |" in page


@pytest.mark.parametrize("doc", CAUSES, ids=lambda doc: doc.name)
def test_every_cause_is_documented_and_linked_from_its_detectors(doc):
    page = DOCUMENTS["docs/diagnosis.md"]

    assert f"\n## {doc.heading}\n" in page
    for text in (doc.meaning, doc.description, *doc.paragraphs.values()):
        assert text in page
    for detector in doc.cause.explains:
        assert f"(runbooks/{detector}.md)" in page
        assert f"({doc.name}.md)" in DOCUMENTS[f"docs/runbooks/{detector}.md"]


def test_every_cause_has_a_unique_anchor():
    assert [doc.name for doc in CAUSES] == sorted(load_modules("causes"))
    assert len({doc.anchor for doc in CAUSES}) == len(CAUSES)


def test_stale_files_are_named_and_rewritten(tmp_path):
    """Missing, changed and left-over files are annotations; writing makes all well."""
    write_documents(tmp_path)
    assert stale_paths(tmp_path) == []

    changed, missing = "deploy/prometheus/rules.yml", "docs/runbooks/watchdog.md"
    (tmp_path / changed).write_text("{}")
    (tmp_path / missing).unlink()
    (tmp_path / "docs/runbooks/nothing.md").write_text("# Nothing")
    assert stale_paths(tmp_path) == [changed, "docs/runbooks/nothing.md", missing]

    write_documents(tmp_path)
    assert stale_paths(tmp_path) == []


def test_a_wrong_option_prints_the_usage(capsys):
    """The command has one option."""
    assert main(["--chekc"]) == 2
    assert "Usage" in capsys.readouterr().err
