"""Dashboards: nothing misspelt, nothing unexplained, and no panel without an answer."""

from __future__ import annotations

import copy
import json
import re
import warnings

import pytest
from dashboards import DASHBOARDS, VARIABLES, filled_in, panels, queries
from programs import find, free_port, running, told, wait_for
from prometheus import Prometheus
from scenario import END, START, openmetrics
from support.results import RUN

from sentinel.generate.dashboards import CLUSTER_AGENTS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

HOUR = {"$run": RUN, "$__rate_interval": "2m", "$__range": "1h", "$__interval": "30s"}

ALL_PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in panels(dashboard)
]
ALL_DASHBOARDS = [pytest.param(board, id=name) for name, board in DASHBOARDS.items()]
QUERIES = [pytest.param(target, id=name) for name, target in queries()]


def test_there_are_dashboards():
    """The tests below are about something."""
    assert DASHBOARDS
    assert len(QUERIES) > 30


# Grafana's own schema


def paths(value, at=""):
    """Every place of a document that holds something."""
    if isinstance(value, dict):
        return {p for key, below in value.items() for p in paths(below, f"{at}.{key}")}
    if isinstance(value, list):
        return {p for i, below in enumerate(value) for p in paths(below, f"{at}[{i}]")}
    return {at}


def lost(dashboard):
    """What a round trip through Grafana's schema drops: what it does not know."""
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
    """A key that is dropped on the way was misspelt."""
    assert lost(dashboard) == set()


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_the_schema_would_have_found_a_misspelt_key(dashboard):
    """The check above can fail."""
    sabotaged = dashboard | {"refesh": "30s"}
    sabotaged["panels"] = [{**dashboard["panels"][0], "targtes": [1]}]

    assert lost(sabotaged) >= {".refesh", ".panels[0].targtes[0]"}


# The rules of Grafana's dashboard linter that apply here, the run in the place of job and instance


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_a_dashboard_can_be_chosen_for_and_not_edited(dashboard):
    """A source and a run to choose from, read anew when the time range changes."""
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}

    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["run"]["refresh"] == 2
    assert dashboard["editable"] is False
    assert dashboard["uid"]
    assert "sentinel" in dashboard["tags"]


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_panels_have_a_number_and_a_place_of_their_own(dashboard):
    """No two panels share an id or a spot."""
    every = [*panels(dashboard)]
    spots = {
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }

    assert len({panel["id"] for panel in every}) == len(every)
    assert len(spots) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in every)
    assert max(x for x, _ in spots) < 24


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_panel_says_what_it_shows_and_where_from(panel):
    """Title, description ending in its metric, unit and the chosen source."""
    assert panel["title"]
    assert re.search(r" Metric: \w+$", panel["description"])
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]


@pytest.mark.parametrize("target", QUERIES)
def test_a_query_is_about_one_run_and_treats_counters_as_such(target):
    """Counters only under rate or increase, over a window that fits every scrape interval."""
    # Of a run on several nodes its other nodes as well: what that gives is tested below.
    expr = re.sub(rf" or (\w+) and on \(run\) \({re.escape(CLUSTER_AGENTS)}\)$", "", target["expr"])

    assert target["datasource"]["uid"] == "${datasource}"
    for metric in re.findall(r"sentinel_\w+", expr):
        assert f'{metric}{{run="$run"}}' in expr
    for counter in re.findall(r"sentinel_\w+_total", expr):
        assert re.search(
            rf"(rate|increase)\({counter}\{{[^}}]*\}}\[\$__(rate_interval|range)\]", expr
        )
    assert set(re.findall(r"\$\w+", expr)) <= set(VARIABLES)


def test_what_is_measured_of_a_node_is_shown_of_all_nodes_of_the_run_and_of_no_others(
    promtool, tmp_path
):
    """Each node knows the run by a name of its own, and all by the address of one head."""
    (expr,) = (t["expr"] for name, t in queries() if name == "run-health: Host CPU A")
    heads = {"a": "h:1", "b": "h:1", "x": "other:1", "o": "", "p": ""}
    cpu = [f'sentinel_host_cpu_ratio{{run="{run}"}}' for run in [*heads, "single"]]
    role = [f'sentinel_cluster_role_info{{run="{r}",head="{head}"}}' for r, head in heads.items()]

    def of(run, *nodes):
        samples = [{"labels": cpu[[*heads, "single"].index(node)], "value": 1} for node in nodes]
        asked = filled_in(expr, HOUR | {"$run": run})
        return {"expr": asked, "eval_time": "1m", "exp_samples": samples}

    case = {
        "interval": "1m",
        "input_series": [{"series": each, "values": "1x5"} for each in [*cpu, *role]],
        "promql_expr_test": [
            of("a", "a", "b"),
            of("x", "x"),
            of("single", "single"),
            # Neither knows a head: that is nothing they share.
            of("o", "o"),
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [case]}))
    checked = told(promtool, "test", "rules", str(tmp_path / "test.yml"))

    assert checked.returncode == 0, checked.stdout


# Every query on a real Prometheus that holds an hour of a run


@pytest.fixture(scope="module")
def hour(tmp_path_factory, promtool):
    """Prometheus over the scenario's hour."""
    program, folder = find("prometheus"), tmp_path_factory.mktemp("hour")
    (folder / "hour.om").write_text(openmetrics())
    (folder / "prometheus.yml").write_text("{}")
    filled = told(
        promtool, "tsdb", "create-blocks-from", "openmetrics", f"{folder}/hour.om", f"{folder}/data"
    )
    assert filled.returncode == 0, filled.stdout
    prometheus = Prometheus(f"http://127.0.0.1:{free_port()}")
    with running(
        folder / "log",
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={prometheus.url.removeprefix('http://')}",
        "--log.level=warn",
    ):
        wait_for("Prometheus", lambda: prometheus.ready)
        yield prometheus


@pytest.mark.parametrize("target", QUERIES)
def test_every_query_has_an_answer(hour, target):
    """No panel is empty during a run that logs everything."""
    expr = filled_in(target["expr"], HOUR)
    series = hour.now(expr, END) if target["instant"] else hour.over(expr, START, END, 30)

    assert series


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_every_mark_has_an_answer(hour, dashboard):
    """Alerts and checkpoints are marked on the charts."""
    for marks in dashboard["annotations"]["list"]:
        series = hour.over(filled_in(marks["expr"], HOUR), START, END, 30)
        assert series
        if marks["useValueForTime"]:
            times = {float(value) for one in series for _, value in one["values"]}
            assert all(START * 1000 <= time <= (END + 3600) * 1000 for time in times)


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_every_choice_has_something_to_choose(hour, dashboard):
    """The run's name is offered."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(
                r"label_values\((\w+), (\w+)\)", variable["query"]
            ).groups()
            assert hour.label_values(metric, label, START, END) == [RUN]


def test_the_page_shows_what_went_wrong(hour):
    """The numbers on top are those of the scenario: one alert, one rank gone."""
    top = {p["title"]: p["targets"][0]["expr"] for p in panels(DASHBOARDS["run-health"])}

    def value(title):
        return float(hour.now(filled_in(top[title], HOUR), END)[0]["value"][1])

    assert value("Alerts firing") == 1
    assert value("Ranks running") == 1
    assert hour.now(filled_in(top["State"], HOUR), END)[0]["metric"] == {"state": "running"}
