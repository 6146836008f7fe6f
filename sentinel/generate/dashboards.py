"""Dashboards: drawn from the catalogue of signals and the room of detectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sentinel.generate.detector_docs import DataSheet
from sentinel.generate.panels import (
    BAD,
    GOOD,
    WARN,
    About,
    Front,
    Query,
    band,
    chart,
    lanes,
    note,
    number,
    page,
    row,
    shares,
    word,
)
from sentinel.generate.rules import causes_url, runbook_url
from sentinel.model.diagnosis import NAMED
from sentinel.signals.catalogue import GROUPS, SIGNALS, Combine, Signal

RUN = '{run="$run"}'

FIRST = ("kl_ref", "reward", "loss", "grad_norm", "step_time", "global_step")
"""The signals one looks at first; all others follow, folded away by what they are about."""

_UNITS = {
    "": "short",
    "seconds": "s",
    "ratio": "percentunit",
    "bytes": "bytes",
    "watts": "watt",
    "celsius": "celsius",
}
_TITLES = {
    "kl_ref": "KL to the reference",
    "kl_old": "KL to the sampling policy",
    "kl_mismatch": "KL between sampling engine and trainer",
    "kl_coef": "KL coefficient",
    "mfu": "Model FLOPs utilisation",
}
_ABBREVIATIONS = {"gpu": "GPU", "ecc": "ECC", "xid": "XID", "cpu": "CPU"}
_LEGENDS = {
    "": "run", "gpu": "{{instance}} GPU {{gpu}}", "disk": "{{instance}} {{keeps}}",
    "host": "{{instance}}",
}  # fmt: skip
"""Names of the series by what is measured; each node is a target of its own."""

NODES = 'sentinel_cluster_role_info and on (head) sentinel_cluster_role_info{run="$run",head!=""}'
"""Agents of all nodes of the run: each knows it by a name of its own, and all by one head."""


def run_health(sheets: Iterable[DataSheet]) -> str:
    """The page for whoever is on call: is it healthy, since when not, which rank, what to do."""
    known = list(sheets)
    parts = [
        *_top(),
        _causes(),
        _verdicts(known),
        *(_signal_panel(SIGNALS[name], known) for name in FIRST),
        *_ranks(),
        *(
            row(title, [_signal_panel(s, known, 8) for s in signals if s.name not in FIRST])
            for title, signals in GROUPS.items()
        ),
        row("Sentinel itself", _itself()),
    ]
    front = Front(
        "Run health",
        "sentinel-run-health",
        "Whether one training run is healthy, and if not: since when, which rank, and what to do.",
        runs_of="sentinel_run_info",
    )
    return page(front, parts, _notes())


def _top() -> Iterator[Any]:
    yield word(
        _small(
            "State", "State of the run; no word when no agent speaks for it.", "sentinel_run_state"
        ),
        Query(f"max by (state) (sentinel_run_state{RUN} == 1)", "{{state}}", now=True),
        {
            "starting": "blue",
            "running": GOOD,
            "stalled": WARN,
            "finished": "blue",
            "failed": BAD,
            "died": BAD,
        },
    )
    yield number(
        _small(
            "Alerts firing",
            "Open each one's runbook from the lanes below.",
            "sentinel_alert_firing",
        ),
        Query(f"sum(max by (detector, severity) (sentinel_alert_firing{RUN}))", now=True),
        {0: GOOD, 1: BAD},
    )
    for name in ("kl_ref", "reward"):
        signal = SIGNALS[name]
        about = _small(_title(signal), signal.help, signal.metric, _unit(signal))
        yield number(about, Query(f"{signal.metric}{RUN}", now=True))
    yield number(
        _small(
            "Steps per minute",
            "Zero while an evaluation or a save lasts.",
            "sentinel_steps_total",
            "cpm",
        ),
        Query(f"60 * sum(rate(sentinel_steps_total{RUN}[$__rate_interval]))", now=True),
    )
    yield number(
        _small(
            "Last step ago",
            "Far above the step time: look for a hang.",
            "sentinel_last_step_timestamp_seconds",
            "s",
        ),
        Query(f"time() - max(sentinel_last_step_timestamp_seconds{RUN})", now=True),
    )
    yield number(
        _small(
            "Ranks running",
            "Fewer than were started: a rank has died or ended.",
            "sentinel_ranks_running",
        ),
        Query(f"sum(sentinel_ranks_running{RUN})", now=True),
    )
    yield number(
        _small(
            "Not finite",
            "NaN or infinite values in the time shown: see which signal below.",
            "sentinel_nonfinite_total",
        ),
        Query(f"sum(increase(sentinel_nonfinite_total{RUN}[$__range])) or vector(0)", now=True),
        {0: GOOD, 1: BAD},
    )


def _causes() -> Any:
    about = About(
        "Diagnosis",
        "The named cause of each open case, and how far it is believed in. Evidence, remedy and "
        "last good checkpoint are on the agent's own page. Metric: sentinel_diagnosis_confidence",
        unit="percentunit",
        width=24,
        height=5,
        links={"Causes": causes_url()},
    )
    named = Query(f"max by (cause) (sentinel_diagnosis_confidence{RUN})", "{{cause}}")
    return shares(about, named, {NAMED: WARN, 0.9: BAD})


def _verdicts(sheets: Sequence[DataSheet]) -> Any:
    about = About(
        "Detectors",
        "One lane per detector, red while its alert fires. The links are its runbooks. "
        "Metric: sentinel_alert_firing",
        width=24,
        height=max(6, 2 + (len(sheets) + 1) // 2),
        links={sheet.headline.partition(":")[0]: runbook_url(sheet.name) for sheet in sheets},
    )
    firing = Query(f"max by (detector) (sentinel_alert_firing{RUN})", "{{detector}}")
    return lanes(about, firing, {0: ("calm", GOOD), 1: ("firing", BAD)})


def _signal_panel(signal: Signal, sheets: Sequence[DataSheet], width: int = 12) -> Any:
    judges = [sheet for sheet in sheets if sheet.signal is signal]
    advice = "".join(f" {sheet.headline.partition(':')[0]}: {sheet.remedy}" for sheet in judges)
    about = About(
        _title(signal),
        f"{signal.help}{advice} Metric: {signal.metric}",
        unit=_unit(signal),
        width=width,
        links={sheet.headline.partition(":")[0]: runbook_url(sheet.name) for sheet in judges},
    )
    elsewhere = f" or {signal.metric} and on (run) ({NODES})" if signal.each else ""
    middle = Query(f"{signal.metric}{RUN}{elsewhere}", _LEGENDS[signal.each])
    if signal.combine is Combine.SAME or signal.each:
        return chart(about, [middle])
    lowest, highest, _ = signal.rank_metrics
    return band(
        about,
        middle,
        Query(f"{lowest}{RUN}", "lowest rank"),
        Query(f"{highest}{RUN}", "highest rank"),
    )


def _ranks() -> Iterator[Any]:
    yield chart(
        About(
            "Slowest ranks",
            "Step time of the eight slowest ranks. One far above the others holds them all: look "
            "at its node. Metric: sentinel_rank_step_duration_seconds",
            unit="s",
        ),
        [Query(f"topk(8, sentinel_rank_step_duration_seconds{RUN})", "rank {{rank}}")],
    )
    yield lanes(
        About(
            "Ranks",
            "Whether each rank's process is there. The first to go is the one to look at. "
            "Metric: sentinel_rank_up",
        ),
        Query(f"max by (rank) (sentinel_rank_up{RUN})", "rank {{rank}}"),
        {0: ("gone", BAD), 1: ("up", GOOD)},
    )
    yield chart(
        About(
            "Values that are not finite",
            "NaN or infinity by signal. In the gradient norm alone it may be loss scaling; in the "
            "loss go back to a checkpoint. Metric: sentinel_nonfinite_total",
        ),
        [
            Query(
                f"sum by (signal) (increase(sentinel_nonfinite_total{RUN}[$__rate_interval]))",
                "{{signal}}",
            )
        ],
    )
    yield chart(
        About(
            "Nodes",
            "Of a run on several nodes; its page names those that are lost. Metric: sentinel_nodes",
            links={"Node lost": runbook_url("node_lost")},
        ),
        [Query(f"max by (state) (sentinel_nodes{RUN})", "{{state}}")],
    )


def _itself() -> Iterator[Any]:
    yield number(
        About(
            "Agents unreachable",
            "Start them again with `sentinel agent --run <run>`. Metric: up",
            width=8,
        ),
        Query('count(up{job="sentinel"} == 0) or vector(0)', now=True),
        {0: GOOD, 1: BAD},
    )
    yield _own("hook_overhead_seconds", "rank", "Share of its time a rank spends in the hook.")
    yield _own("dropped_records", "reason", "Detectors see less than happened.")
    yield _own("hook_errors", "rank", "Swallowed inside the trainer: report them.")
    yield _own("detector_errors", "detector", "After three it is off for the run: report it.")
    yield _own("sink_deliveries", "outcome", "Try a sink with `sentinel notify test`.")


def _own(name: str, by: str, text: str) -> Any:
    family = f"sentinel_{name}_total"
    is_time = name.endswith("seconds")
    how, unit = ("rate", "percentunit") if is_time else ("increase", "short")
    title = name.replace("_", " ").capitalize()
    return chart(
        About(title, f"{text} Metric: {family}", unit=unit, width=8),
        [Query(f"sum by ({by}) ({how}({family}{RUN}[$__rate_interval]))", f"{{{{{by}}}}}")],
    )


def _notes() -> Iterator[Any]:
    yield note(
        "Alert",
        f"max by (detector, severity) (sentinel_alert_firing{RUN}) == 1",
        "{{detector}} ({{severity}})",
        BAD,
    )
    yield note(
        "Checkpoint",
        f"1000 * sentinel_last_checkpoint_timestamp_seconds{RUN}",
        "Checkpoint written",
        "blue",
        value_is_time=True,
    )


def _small(title: str, text: str, metric: str, unit: str = "short") -> About:
    return About(title, f"{text} Metric: {metric}", unit=unit, width=3, height=4)


def _title(signal: Signal) -> str:
    if signal.name in _TITLES:
        return _TITLES[signal.name]
    title = signal.name.replace("_", " ").capitalize()
    return " ".join(_ABBREVIATIONS.get(word.lower(), word) for word in title.split())


def _unit(signal: Signal) -> str:
    if signal.name == "learning_rate":
        return "sci"
    return _UNITS.get(signal.unit, f"suffix: {signal.unit}")
