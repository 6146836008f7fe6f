"""Dashboards: valid schema, descriptions, and queries that return data; and alerts of Grafana."""

from __future__ import annotations

import copy
import json
import re
import warnings
from pathlib import Path

import pytest
import yaml
from dashboards import DASHBOARDS, VARIABLES, panels, queries, with_variables
from hour import HOUR, prometheus_of_the_hour
from programs import run_program
from scenario import END, HEALTHY_RUN, RANKS, SLOW_RANK, START
from support.results import DIAGNOSIS, RUN

from sentinel.signals.catalogue import SIGNALS
from tools.generate.boards.shared_panels import CLUSTER_AGENTS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

VALUES = {"run": [RUN, HEALTHY_RUN], "rank": [str(rank) for rank in range(RANKS)]}
"""Values of the variables in the scenario."""
OF_ALL_AGENTS = {"sentinel_build_info"}
"""Families without a run."""

RULES = Path(__file__).parents[2] / "deploy" / "grafana-alerting" / "rules.yaml"
ALERTS = {
    rule["title"]: {query["refId"]: query["model"] for query in rule["data"]}
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
"""Queries and condition of each alert that Grafana evaluates."""
FIRING = {"SentinelCase", "SentinelWatchdog", "SentinelDetectorFailing", "SentinelRecordsDropped"}
"""Alerts of the scenario at its end."""

ALL_PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in panels(dashboard)
    if panel["type"] != "text"
]
ALL_DASHBOARDS = [pytest.param(board, id=name) for name, board in DASHBOARDS.items()]
QUERIES = [pytest.param(target, id=name) for name, target in queries()]


def test_every_board_is_small_enough_to_read():
    """Open, not in collapsed rows; what is healthy is answered on one page."""
    opened = {
        name: [panel for panel in board["panels"] if panel["type"] != "row"]
        for name, board in DASHBOARDS.items()
    }

    assert len(opened) == 7
    assert max(len(shown) for shown in opened.values()) <= 30
    assert not any(panel["type"] == "row" for panel in DASHBOARDS["run-health"]["panels"])


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_a_board_links_to_the_page_and_to_the_others(dashboard):
    page = "" if dashboard["uid"] == "sentinel-fleet" else "runs/${run:percentencode}/"
    others, own_page = dashboard["links"]

    assert others["tags"] == ["sentinel"]
    assert own_page["url"] == f"${{page}}/{page}"


def test_every_link_to_a_board_leads_to_one():
    uids = {board["uid"] for board in DASHBOARDS.values()}
    links = re.findall(r"/d/([\w-]+)", json.dumps(DASHBOARDS))

    assert links
    assert set(links) <= uids


def test_every_signal_of_the_catalogue_is_on_a_board():
    shown = " ".join(target["expr"] for _, target in queries())

    assert [s.metric for s in SIGNALS.values() if f"{s.metric}{{" not in shown] == []


# Grafana's own schema


def paths(value, at=""):
    """Paths of all values of a document."""
    if isinstance(value, dict):
        return {p for key, below in value.items() for p in paths(below, f"{at}.{key}")}
    if isinstance(value, list):
        return {p for i, below in enumerate(value) for p in paths(below, f"{at}[{i}]")}
    return {at}


def dropped_paths(dashboard):
    """Paths that a round trip through Grafana's schema drops because it does not know them."""
    pytest.importorskip("grafana_foundation_sdk", reason="it needs Python 3.11")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard
    register_default_plugins()
    read = Dashboard.from_json(copy.deepcopy(dashboard))
    return paths(dashboard) - paths(json.loads(json.dumps(read, cls=JSONEncoder)))


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_grafanas_schema_knows_every_key(dashboard):
    assert dropped_paths(dashboard) == set()


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_a_misspelt_key_is_found(dashboard):
    misspelt = dashboard | {"refesh": "30s"}
    misspelt["panels"] = [{**dashboard["panels"][0], "targtes": [1]}]

    assert dropped_paths(misspelt) >= {".refesh", ".panels[0].targtes[0]"}


# The applicable rules of Grafana's dashboard linter, with the run in place of job and instance


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_a_dashboard_has_variables_and_is_not_editable(dashboard):
    """Data source and run can be selected; labels are refreshed with the time range."""
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    queried = [each for each in variables.values() if each["type"] == "query"]

    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["run"] in queried
    assert {variable["refresh"] for variable in queried} == {2}
    assert dashboard["editable"] is False
    assert dashboard["uid"]
    assert "sentinel" in dashboard["tags"]


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_panels_have_unique_ids_and_do_not_overlap(dashboard):
    all_panels = [*panels(dashboard)]
    cells = {
        (x, y)
        for panel in all_panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }

    assert len({panel["id"] for panel in all_panels}) == len(all_panels)
    assert len(cells) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in all_panels)
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_panel_has_title_description_unit_and_source(panel):
    """The description ends with the metric."""
    assert panel["title"]
    assert re.search(r" Metric: \w+$", panel["description"])
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]


@pytest.mark.parametrize("target", QUERIES)
def test_a_query_selects_one_run_and_uses_rates_of_counters(target):
    """The window of a rate fits every scrape interval."""
    # The other nodes of a run on several nodes are tested below.
    expr = re.sub(rf" or (\w+) and on \(run\) \({re.escape(CLUSTER_AGENTS)}\)", "", target["expr"])

    assert target["datasource"]["uid"] == "${datasource}"
    for metric in set(re.findall(r"sentinel_\w+", expr)) - OF_ALL_AGENTS:
        assert not re.search(rf'\b{metric}\b(?!{{run=~?"\$run"[,}}])', expr)
    for counter in re.findall(r"(?:sentinel|node)_\w+_total", expr):
        assert re.search(
            rf"(rate|increase)\({counter}(\{{[^}}]*\}})?\[\$__(rate_interval|range)\]", expr
        )
    assert set(re.findall(r"\$[a-z_]\w*", expr)) <= set(VARIABLES)


def test_node_measurements_are_shown_for_all_nodes_of_the_run_only(promtool, tmp_path):
    """Each node has its own name of the run; all have the address of one head."""
    (expr,) = (t["expr"] for name, t in queries() if name == "system: Host CPU A")
    heads = {"a": "h:1", "b": "h:1", "x": "other:1", "o": "", "p": ""}
    cpu = [f'sentinel_host_cpu_ratio{{run="{run}"}}' for run in [*heads, "single"]]
    role = [f'sentinel_cluster_role_info{{run="{r}",head="{head}"}}' for r, head in heads.items()]

    def expected_series(run, *nodes):
        samples = [{"labels": cpu[[*heads, "single"].index(node)], "value": 1} for node in nodes]
        query = with_variables(expr, HOUR | {"$run": run})
        return {"expr": query, "eval_time": "1m", "exp_samples": samples}

    case = {
        "interval": "1m",
        "input_series": [{"series": each, "values": "1x5"} for each in [*cpu, *role]],
        "promql_expr_test": [
            expected_series("a", "a", "b"),
            expected_series("x", "x"),
            expected_series("single", "single"),
            # Neither has a head address: they are not the same run.
            expected_series("o", "o"),
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [case]}))
    checked = run_program(promtool, "test", "rules", str(tmp_path / "test.yml"))

    assert checked.returncode == 0, checked.stdout


# Every query on a Prometheus with one hour of a run


@pytest.fixture(scope="module")
def hour(tmp_path_factory):
    """Prometheus with the hour of the scenario."""
    with prometheus_of_the_hour(tmp_path_factory.mktemp("hour")) as prometheus:
        yield prometheus


@pytest.mark.parametrize("target", QUERIES)
def test_every_query_returns_data(hour, target):
    expr = with_variables(target["expr"], HOUR)
    series = (
        hour.instant_query(expr, END)
        if target["instant"]
        else hour.range_query(expr, START, END, 30)
    )

    assert series


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_every_annotation_returns_data(hour, dashboard):
    for marks in dashboard["annotations"]["list"]:
        series = hour.range_query(with_variables(marks["expr"], HOUR), START, END, 30)
        assert series
        if marks["useValueForTime"]:
            times = {float(value) for one in series for _, value in one["values"]}
            assert all(START * 1000 <= time <= (END + 3600) * 1000 for time in times)


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_every_variable_has_a_value(hour, dashboard):
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(
                r"label_values\((.+), (\w+)\)", with_variables(variable["query"], HOUR)
            ).groups()
            assert hour.label_values(series, label, START, END) == VALUES[label]


def test_the_fleet_shows_each_run(hour):
    """One of two runs is healthy; each has one row."""
    fleet = {p["title"]: p["targets"] for p in panels(DASHBOARDS["fleet"])}

    def series(title, query=0, runs=".*"):
        expr = with_variables(fleet[title][query]["expr"], HOUR | {"$run": runs})
        return hour.instant_query(expr, END)

    def value(title, runs=".*"):
        return float(series(title, runs=runs)[0]["value"][1])

    assert value("Active runs") == 2
    assert value("Healthy") == 0.5
    assert value("Healthy", HEALTHY_RUN) == 1
    assert value("Healthy", RUN) == 0
    assert value("Cases firing") == 1
    assert value("Cases firing", HEALTHY_RUN) == 0
    assert value("Ranks running") == RANKS
    health = {each["metric"]["run"]: each["value"][1] for each in series("Health")}
    assert health == {RUN: "2", HEALTHY_RUN: "0"}
    for query in range(len(fleet["Runs"])):
        assert {each["metric"]["run"] for each in series("Runs", query)} == {RUN, HEALTHY_RUN}
        assert len(series("Runs", query)) == 2


def test_the_slow_rank_is_the_highest_and_the_rows_are_in_the_order_of_ranks(hour):
    ranks = {p["title"]: p["targets"][0]["expr"] for p in panels(DASHBOARDS["ranks"])}
    slowest = hour.instant_query(with_variables(ranks["Slowest ranks"], HOUR), END)
    rows = hour.range_query(with_variables(ranks["Step time by rank"], HOUR), START, END, 30)

    assert max(slowest, key=lambda s: float(s["value"][1]))["metric"]["rank"] == str(SLOW_RANK)
    assert [row["metric"]["rank"] for row in rows] == [f"{rank:05}" for rank in range(RANKS)]


def test_the_top_panels_show_the_state_of_the_scenario(hour):
    """One alert fires, and one rank died."""
    top = {p["title"]: p["targets"][0]["expr"] for p in panels(DASHBOARDS["run-health"])}

    def value(title):
        return float(hour.instant_query(with_variables(top[title], HOUR), END)[0]["value"][1])

    assert value("Alerts firing") == 1
    assert value("Ranks running") == RANKS - 1
    assert 0 < value("Goodput") < 1
    assert hour.instant_query(with_variables(top["State"], HOUR), END)[0]["metric"] == {
        "state": "running"
    }


# Alerts of Grafana


def test_what_fires_in_grafana_exceeds_the_threshold(hour):
    values = {
        name: [float(each["value"][1]) for each in hour.instant_query(models["A"]["expr"], END)]
        for name, models in ALERTS.items()
    }

    assert {name for name, found in values.items() if found} == FIRING
    for name in FIRING:
        (threshold,) = ALERTS[name]["C"]["conditions"][0]["evaluator"]["params"]
        assert min(values[name]) > threshold


def test_sentences_and_values_of_a_case_have_the_labels_of_its_alert(hour):
    """Grafana attaches a series whose labels include those of the alert."""
    models = ALERTS["SentinelCase"].items()
    found = {name: hour.instant_query(model["expr"], END) for name, model in models if name != "C"}
    (alert,) = found.pop("A")

    assert alert["metric"].items() >= {"run": RUN, "cause": DIAGNOSIS.cause}.items()
    assert found.pop("fact3") == []
    for name, series in found.items():
        (attached,) = series
        assert attached["metric"].items() >= alert["metric"].items(), name
    assert found["title"][0]["metric"]["text"].startswith("Policy collapse")
    assert found["onset_step"][0]["value"][1] == "86"
