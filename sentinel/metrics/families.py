"""Families: a run's standing as Prometheus metric families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from math import isnan

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sentinel import __version__
from sentinel.metrics.label import sanitize_label
from sentinel.metrics.run_state import PATCH_STATES, RUN_STATES, RunState, patch_state, worst_rank
from sentinel.model.counters import COUNTER_FAMILIES, CounterFamily
from sentinel.model.finding import Severity
from sentinel.model.record import Spread
from sentinel.signals.catalogue import SIGNALS, CombineRule, Signal
from sentinel.signals.hardware import NODE_SIGNALS
from sentinel.signals.kl import KlKind

CounterValues = Mapping[tuple[str, str], float]

MAX_LABEL_VALUES = 100
"""Label values that one of sentinel's own counters shows; the rest are counted as `other`."""

RUN_INFO_LABELS = ("framework", "framework_version", "algorithm", "model", "world_size")
"""What a run says of itself that becomes a label of `sentinel_run_info`."""

LIVENESS_HELP = {
    "ranks_running": "Ranks whose process is there.",
    "ranks_gone": "Ranks whose process went away without a word.",
    "ranks_failed": "Ranks that ended by an error of their own.",
}
"""What a TICK counts, of all ranks, however many there are."""


def metric_families(
    run_state: RunState, detectors: Mapping[str, Severity], counts: CounterValues
) -> Iterator[Metric]:
    """All families of the page. Before a run is known there are only those about sentinel."""
    run = sanitize_label(run_state.run)
    yield InfoMetricFamily("sentinel_build", "Version of sentinel.", {"version": __version__})
    for count in COUNTER_FAMILIES:
        yield _own_counter_family(count, run, counts)
    if run:
        yield from _run_families(run_state, run)
        yield from _patch_families(run_state, run)
        yield from _signal_families(run_state, run)
        yield from _rank_families(run_state, run)
        yield from _alert_families(run_state, run, detectors)
        yield _diagnosis_family(run_state, run)


def _run_families(run_state: RunState, run: str) -> Iterator[Metric]:
    told = {
        **{name: f"{value:.15g}" for name, value in run_state.settings.items()},
        **run_state.metadata,
    }
    about = {name: sanitize_label(told.get(name, "")) for name in RUN_INFO_LABELS}
    yield InfoMetricFamily("sentinel_run", "What is trained, and how.", {"run": run, **about})
    settings = {sanitize_label(name): value for name, value in run_state.settings.items()}
    yield _with_samples(
        GaugeMetricFamily(
            "sentinel_run_setting",
            "What the run says it was set to, by the framework's own name.",
            labels=("run", "name"),
        ),
        (((run, name), value) for name, value in islice(settings.items(), MAX_LABEL_VALUES)),
    )
    yield _gauge(
        "sentinel_run_active",
        "1 while the run is, or should be, training.",
        run,
        run_state.is_active,
    )
    yield _with_samples(
        GaugeMetricFamily(
            "sentinel_run_state", "1 for the state the run is in.", labels=("run", "state")
        ),
        (((run, state), state == run_state.state) for state in RUN_STATES),
    )
    if run_state.step is not None:
        yield _gauge("sentinel_global_step", SIGNALS["global_step"].help, run, run_state.step)
    yield _counter("sentinel_steps", "Training steps seen.", run, run_state.step_count)
    yield _counter(
        "sentinel_checkpoints", "Checkpoints seen being written.", run, run_state.checkpoint_count
    )
    for name, help_, when in (
        ("step", "When the last training step ended.", run_state.last_step_time),
        ("checkpoint", "When the last checkpoint was written.", run_state.last_checkpoint_time),
    ):
        if not isnan(when):
            yield _gauge(f"sentinel_last_{name}_timestamp_seconds", help_, run, when)


def _patch_families(run_state: RunState, run: str) -> Iterator[Metric]:
    counted = Counter(
        (sanitize_label(name), patch_state(told)) for (name, _), told in run_state.patches.items()
    )
    names = sorted({name for name, _ in counted})[:MAX_LABEL_VALUES]
    yield _with_samples(
        GaugeMetricFamily(
            "sentinel_patch_up",
            "1 while no rank's tap of that integration has switched itself off.",
            labels=("run", "integration"),
        ),
        (((run, name), not counted[name, "off"]) for name in names),
    )
    yield _with_samples(
        GaugeMetricFamily(
            "sentinel_patch_ranks",
            "Ranks by how the integration's tap is in them.",
            labels=("run", "integration", "state"),
        ),
        (((run, name, state), counted[name, state]) for name in names for state in PATCH_STATES),
    )


def _signal_families(run_state: RunState, run: str) -> Iterator[Metric]:
    for name, value in run_state.signals.items():
        # What is measured of the machine has families of its own, whoever logs the like.
        if name == "global_step" or name in NODE_SIGNALS:
            continue
        signal = SIGNALS[name]
        yield _gauge(signal.metric, signal.help, run, value)
        spread = run_state.spreads.get(name)
        # Where every rank should say the same, how they differ is not worth five families.
        if spread is not None and signal.combine_rule is not CombineRule.SAME:
            yield from _spread_families(signal, spread, run)
    yield _kl_family(run_state.kl_kinds, run)
    yield _with_samples(
        GaugeMetricFamily(
            "sentinel_logged_value",
            "Last value logged under a key of one's own.",
            labels=("run", "key"),
        ),
        (((run, key), value) for key, value in run_state.logged.items()),
    )
    yield _counter(
        "sentinel_logged_values_hidden",
        "Logged values left off this page because there are too many keys.",
        run,
        run_state.hidden_value_count,
    )


def _kl_family(kinds: Mapping[str, KlKind], run: str) -> Metric:
    names = ("run", "signal", "pair", "estimator", "reduction")
    family = InfoMetricFamily(
        "sentinel_policy_kl", "Which of the quantities called KL each signal is.", labels=names
    )
    for name, kind in kinds.items():
        told = (run, name, kind.pair, sanitize_label(kind.estimator), kind.reduction)
        family.add_metric(told, {})
    return family


def _spread_families(signal: Signal, spread: Spread, run: str) -> Iterator[Metric]:
    lowest, highest, worst = signal.rank_metrics
    yield _gauge(lowest, f"Lowest rank's value. {signal.help}", run, spread.min)
    yield _gauge(highest, f"Highest rank's value. {signal.help}", run, spread.max)
    mean, std = signal.deviation_metrics
    yield _gauge(mean, f"Mean of the ranks' values. {signal.help}", run, spread.mean)
    yield _gauge(std, f"Standard deviation over ranks. {signal.help}", run, spread.std)
    yield _gauge(worst, "Rank whose value is not finite, else highest.", run, worst_rank(spread))


def _rank_families(run_state: RunState, run: str) -> Iterator[Metric]:
    for name, help_ in LIVENESS_HELP.items():
        if name in run_state.liveness:
            yield _gauge(f"sentinel_{name}", help_, run, run_state.liveness[name])
    yield _gauge(
        "sentinel_ranks_hidden",
        "Ranks without series of their own, since there are too many and they do not stand out.",
        run,
        run_state.rank_selection.hidden_count,
    )
    ranks = [((run, str(rank)), known) for rank, known in run_state.shown_ranks.items()]
    for name, help_, rows in (
        ("up", "1 while the rank's process is there.", [(at, r.up) for at, r in ranks]),
        (
            "step_duration_seconds",
            SIGNALS["step_time"].help,
            [(at, r.step_time) for at, r in ranks if not isnan(r.step_time)],
        ),
        (
            "last_step_timestamp_seconds",
            "When the rank's last training step ended.",
            [(at, r.last_step) for at, r in ranks if not isnan(r.last_step)],
        ),
    ):
        family = GaugeMetricFamily(f"sentinel_rank_{name}", help_, labels=("run", "rank"))
        yield _with_samples(family, rows)


def _alert_families(
    run_state: RunState, run: str, detectors: Mapping[str, Severity]
) -> Iterator[Metric]:
    quiet = run_state.suppression
    # Alertmanager wakes people by this label, and the run's tier holds for it too.
    firing = {
        (i.key.detector, quiet.notified_severity(i.severity).value)
        for i in run_state.open_incidents.values()
    }
    usual = {(name, severity.value) for name, severity in detectors.items()}
    pairs = sorted(usual | firing | run_state.alert_counts.keys())
    labels = ("run", "detector", "severity")
    yield _with_samples(
        GaugeMetricFamily(
            "sentinel_alert_firing", "1 while the detector's alert is firing.", labels=labels
        ),
        (((run, *pair), pair in firing) for pair in pairs),
    )
    yield _with_samples(
        CounterMetricFamily("sentinel_alerts", "Alerts that began to fire.", labels=labels),
        (((run, *pair), run_state.alert_counts[pair]) for pair in pairs),
    )
    names = sorted({name for name, _ in pairs})
    in_hand = {
        i.key.detector for i in run_state.open_incidents.values() if quiet.acknowledgement(i)
    }
    for word, help_, of in (
        ("silenced", "1 while nobody is told of the detector's alerts.", quiet.is_suppressed),
        ("acknowledged", "1 while somebody has the alert in hand.", in_hand.__contains__),
    ):
        family = GaugeMetricFamily(f"sentinel_alert_{word}", help_, labels=("run", "detector"))
        yield _with_samples(family, (((run, name), of(name)) for name in names))


def _diagnosis_family(run_state: RunState, run: str) -> Metric:
    named = [page.diagnosis for page in run_state.open_cases if page.diagnosis is not None]
    surest: dict[str, float] = {}
    for known in named:
        cause = sanitize_label(known.cause)
        surest[cause] = max(known.confidence, surest.get(cause, 0.0))
    return _with_samples(
        GaugeMetricFamily(
            "sentinel_diagnosis_confidence",
            "How far the named cause of an open case is believed in, from 0 to 1.",
            labels=("run", "cause"),
        ),
        (((run, cause), surest[cause]) for cause in sorted(surest)[:MAX_LABEL_VALUES]),
    )


def _own_counter_family(count: CounterFamily, run: str, counts: CounterValues) -> Metric:
    mine = sorted(
        (sanitize_label(value), n)
        for (family, value), n in counts.items()
        if family == count.family
    )
    # Two texts may be one label once they are cut.
    rows = [(value, sum(n for _, n in same)) for value, same in groupby(mine, lambda row: row[0])]
    shown, rest = rows[:MAX_LABEL_VALUES], rows[MAX_LABEL_VALUES:]
    if rest:
        shown.append(("other", sum(n for _, n in rest)))
    family = CounterMetricFamily(
        count.family.removesuffix("_total"), count.help, labels=("run", count.label)
    )
    return _with_samples(family, (((run, value), n) for value, n in shown))


def _gauge(name: str, help_: str, run: str, value: float) -> Metric:
    return _with_samples(GaugeMetricFamily(name, help_, labels=("run",)), [((run,), value)])


def _counter(name: str, help_: str, run: str, value: float) -> Metric:
    return _with_samples(CounterMetricFamily(name, help_, labels=("run",)), [((run,), value)])


def _with_samples(
    family: GaugeMetricFamily | CounterMetricFamily,
    rows: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family
