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
from filled_prometheus import VALUES, filled_prometheus
from programs import run_program
from scenario import (
    END,
    GPUS_PER_NODE,
    MAIN_RUN,
    MINUTES,
    RUN_BY_BOARD,
    RUNS,
    SCRAPE_SECONDS,
    SLOW_RANK,
    START,
)

from sentinel.signals.catalogue import SIGNALS
from tools.generate.boards.shared_panels import CLUSTER_AGENTS
from tools.generate.sample_exposition import sample_metrics

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

RUN = MAIN_RUN.name
WITHOUT_RUN = {"sentinel_build_info"}
"""Families without the label of a run."""
UNITS = {
    *("short", "none", "sci", "s", "percentunit", "bytes", "Bps", "watt", "celsius", "cpm", "pps"),
}
"""Units of Grafana that the boards use. It also shows any text after `suffix:`."""

RULES = Path(__file__).parents[2] / "deploy" / "grafana-alerting" / "rules.yaml"
ALERTS = {
    rule["title"]: {query["refId"]: query["model"] for query in rule["data"]}
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
"""Queries and condition of each alert that Grafana evaluates."""
FIRING = {
    *("SentinelCase", "SentinelKlDrift", "SentinelAgentDown", "SentinelDetectorFailing"),
    "SentinelWatchdog",
}
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


def test_every_family_of_a_query_exists():
    """A query of a family that no agent exports would stay empty for ever."""
    names = {sample.name for family in sample_metrics() for sample in family.samples}
    for signal in SIGNALS.values():
        names |= {signal.metric, *signal.rank_metrics, *signal.deviation_metrics}
    used = set(re.findall(r"\bsentinel_\w+", json.dumps(DASHBOARDS)))

    assert len(used) > 200
    assert used - names == set()


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
    (source,) = (each for each in variables.values() if each["type"] == "datasource")

    assert (source["name"], source["label"]) == ("datasource", "Data source")
    assert source["query"] == "prometheus"
    assert {"cluster", "run"} <= {each["name"] for each in queried}
    assert {variable["refresh"] for variable in queried} == {2}
    # A series without the label is shown as well.
    assert {each["allValue"] for each in queried if each.get("includeAll")} == {".*"}
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
    unit = panel["fieldConfig"]["defaults"]["unit"]
    assert unit in UNITS or unit.startswith("suffix: ")
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]


@pytest.mark.parametrize("target", QUERIES)
def test_a_query_selects_one_run_and_uses_rates_of_counters(target):
    """The window of a rate fits every scrape interval."""
    # The other nodes of a run on several nodes are tested below.
    others = rf" or [\w$()[\]@ ]+ and on \(cluster, run\) \({re.escape(CLUSTER_AGENTS)}\)"
    expr = re.sub(others, "", target["expr"])

    assert target["datasource"]["uid"] == "${datasource}"
    for metric in set(re.findall(r"sentinel_\w+", expr)):
        run = "" if metric in WITHOUT_RUN else r',run=~?"\$run"'
        assert not re.search(rf'\b{metric}\b(?!{{cluster=~"\$cluster"{run}[,}}])', expr)
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
        query = with_variables(expr, VALUES | {"$run": run})
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


# Every query on a Prometheus with the scenario


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Prometheus with the scenario."""
    with filled_prometheus(tmp_path_factory.mktemp("scenario")) as filled:
        yield filled


_results: dict[str, list[dict]] = {}
"""Results of queries, which do not change."""


def series_of(prometheus, target, **variables):
    """What a query returns in the scenario, of the main run unless `variables` name another."""
    values = VALUES | {f"${name}": value for name, value in variables.items()}
    expr = with_variables(target["expr"], values)
    if expr not in _results:
        _results[expr] = (
            prometheus.instant_query(expr, END)
            if target["instant"]
            else prometheus.range_query(expr, START, END, SCRAPE_SECONDS)
        )
    return _results[expr]


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_every_query_is_valid_and_returns_data(prometheus, panel):
    """Of the run with 64 ranks, or else of one that logs its signal; invalid ones raise.

    A panel may have thresholds of detectors that state none in this scenario.
    """
    for target in panel["targets"]:
        found = any(series_of(prometheus, target, run=run.name) for run in RUNS)

        assert found or "sentinel_detector_threshold" in target["expr"]


def test_the_panels_that_are_open_have_data_of_one_run(prometheus):
    """At least 95 % of them, in each board."""
    for name, board in DASHBOARDS.items():
        run = RUN_BY_BOARD.get(name, RUN)
        opened = [panel for panel in board["panels"] if panel.get("targets")]
        empty = [
            panel["title"]
            for panel in opened
            if not any(series_of(prometheus, target, run=run) for target in panel["targets"])
        ]

        assert len(empty) <= 0.05 * len(opened), (board["title"], empty)


def test_thresholds_are_drawn(prometheus):
    queries_of_thresholds = [
        target for _, target in queries() if "sentinel_detector_threshold" in target["expr"]
    ]
    shown = {
        each["metric"]["detector"]
        for target in queries_of_thresholds
        for each in series_of(prometheus, target)
    }

    assert len(queries_of_thresholds) > 20
    assert shown >= {"kl_blowup", "entropy_collapse", "grad_explosion", "length_explosion"}


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_every_annotation_returns_data(prometheus, dashboard):
    for marks in dashboard["annotations"]["list"]:
        series = series_of(prometheus, marks | {"instant": False})
        assert series
        if marks["useValueForTime"]:
            times = {float(value) for one in series for _, value in one["values"]}
            assert all(START * 1000 <= time <= END * 1000 for time in times)


@pytest.mark.parametrize("dashboard", ALL_DASHBOARDS)
def test_every_variable_has_its_values(prometheus, dashboard):
    expected = {
        "cluster": {each.cluster for each in RUNS} - {""},
        "algorithm": {each.texts.get("algorithm", "") for each in RUNS} - {""},
        "run": {each.name for each in RUNS},
        "attempt": {"1", "2"},
        "rank": {str(rank) for rank in range(MAIN_RUN.ranks)},
    }
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(
                r"label_values\((.+), (\w+)\)", with_variables(variable["query"], VALUES)
            ).groups()
            values = prometheus.label_values(series, label, START, END)
            assert set(values) == expected[variable["name"]]


def test_a_cluster_an_attempt_and_ranks_can_be_chosen(prometheus):
    boards = {name: {p["title"]: p for p in panels(b)} for name, b in DASHBOARDS.items()}

    def series(board, title, **variables):
        return series_of(prometheus, boards[board][title]["targets"][0], **variables)

    def minutes(**variables):
        (one,) = series("run-health", "KL to the reference", **variables)
        return {round((time - START) / SCRAPE_SECONDS) for time, _ in one["values"]}

    first, second = MAIN_RUN.attempts
    assert max(minutes(attempt="1")) == second.first - 1
    assert minutes(attempt="2") == {*MINUTES[second.first :].tolist()}
    assert minutes(attempt="(1|2)") == minutes() == minutes(attempt="1") | minutes(attempt="2")
    assert minutes(cluster="h100-west") == minutes()
    assert series("run-health", "KL to the reference", cluster="a100-east") == []
    assert len(series("ranks", "Step time by rank", rank="(3|37)")) == 2
    assert first.culprit


def test_the_fleet_shows_each_run(prometheus):
    """One row each, also with one name in two clusters."""
    fleet = {p["title"]: p["targets"] for p in panels(DASHBOARDS["fleet"])}

    def series(title, query=0, **variables):
        return series_of(prometheus, fleet[title][query], **{"run": ".*", **variables})

    def value(title, **variables):
        return float(series(title, **variables)[0]["value"][1])

    names = {run.name for run in RUNS}
    assert value("Active runs") == len(RUNS) - 1
    assert value("Runs that ended badly") == 1
    assert 0 < value("Healthy") < 1
    assert value("Healthy", run="ppo-7b") == 1
    assert value("Healthy", run=RUN) == 0
    assert value("Cases firing", run="ppo-7b") == 0
    assert value("Cases firing", cluster="a100-east") == 1
    assert value("Ranks running", run=RUN) == MAIN_RUN.ranks
    health = {each["metric"]["run"]: each["values"][-1][1] for each in series("Health")}
    assert health.keys() == names
    assert (health[RUN], health["ppo-7b"]) == ("2", "0")
    rows = [[each["metric"]["run"] for each in series("Runs", query)] for query in (0, 1)]
    assert {*rows[0]} == {*rows[1]} == names
    assert len(rows[0]) == len(rows[1]) == len(RUNS)


def test_the_slow_rank_is_the_highest_and_the_rows_are_in_the_order_of_ranks(prometheus):
    ranks = {p["title"]: p["targets"][0] for p in panels(DASHBOARDS["ranks"])}
    slowest = max(
        series_of(prometheus, ranks["Slowest ranks"]), key=lambda s: float(s["values"][-1][1])
    )
    rows = series_of(prometheus, ranks["Step time by rank"])

    assert slowest["metric"]["rank"] == str(SLOW_RANK)
    assert [row["metric"]["rank"] for row in rows] == [f"{n:05}" for n in range(MAIN_RUN.ranks)]


def test_hardware_of_other_exporters_is_that_of_the_run(prometheus):
    """Of 8 nodes, not of the ninth: the extreme GPUs, with the rank that computes on each."""
    system = {p["title"]: p["targets"][0] for p in panels(DASHBOARDS["system"]) if "targets" in p}
    gpus = series_of(prometheus, system["Power"])
    hosts = series_of(prometheus, system["Waiting for disks"])

    assert len(gpus) == 8
    for labels in (each["metric"] for each in gpus):
        node, gpu = divmod(int(labels["ranks"]), GPUS_PER_NODE)
        assert (labels["node"], labels["gpu"]) == (MAIN_RUN.nodes[node], str(gpu))
    assert {each["metric"]["node"] for each in hosts} == {*MAIN_RUN.nodes}


def test_the_top_panels_show_the_state_of_the_scenario(prometheus):
    top = {p["title"]: p["targets"][0] for p in panels(DASHBOARDS["run-health"])}

    def value(title):
        return float(series_of(prometheus, top[title])[0]["value"][1])

    assert value("Alerts firing") >= 2
    assert value("Ranks running") == MAIN_RUN.ranks
    assert 0.5 < value("Goodput") < 1
    assert [each["metric"] for each in series_of(prometheus, top["State"])] == [
        {"state": "running"}
    ]


# Alerts of Grafana


def test_what_fires_in_grafana_exceeds_the_threshold(prometheus):
    values = {
        name: [
            float(each["value"][1]) for each in prometheus.instant_query(models["A"]["expr"], END)
        ]
        for name, models in ALERTS.items()
    }

    assert {name for name, found in values.items() if found} == FIRING
    for name in FIRING:
        (threshold,) = ALERTS[name]["C"]["conditions"][0]["evaluator"]["params"]
        assert min(values[name]) > threshold


def test_sentences_and_values_of_a_case_have_the_labels_of_its_alert(prometheus):
    """Grafana attaches a series whose labels include those of the alert."""
    models = ALERTS["SentinelCase"].items()
    found = {
        name: prometheus.instant_query(model["expr"], END) for name, model in models if name != "C"
    }
    alerts = [each["metric"] for each in found.pop("A")]
    causes = {(each["run"], each["cause"]) for each in alerts}

    assert {(RUN, "policy_collapse"), (RUN, "slow_rank")} < causes
    assert len(alerts) == 3
    onsets = {}
    for alert in alerts:
        attached = {
            name: [each for each in series if each["metric"].items() >= alert.items()]
            for name, series in found.items()
        }
        assert all(len(series) <= 1 for series in attached.values())
        assert attached["title"][0]["metric"]["text"]
        onsets[alert["cause"]] = int(attached["onset_step"][0]["value"][1])
    assert onsets["policy_collapse"] > 0
