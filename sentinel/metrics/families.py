"""Prometheus metric families of a run's state and of sentinel's own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from math import isnan

from prometheus_client.core import InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sentinel import __version__
from sentinel.metrics.family_builders import counter, gauge, run_counter, run_gauge
from sentinel.metrics.label import sanitize_label
from sentinel.metrics.reported_metadata import PATCH_STATES, patch_state
from sentinel.metrics.run_state import LIVENESS_HELP, RUN_STATES, RunState, worst_rank
from sentinel.model.counters import COUNTER_FAMILIES, CounterFamily
from sentinel.model.finding import Severity
from sentinel.model.record import Spread
from sentinel.signals.catalogue import SIGNALS, CombineRule, Signal
from sentinel.signals.hardware import NODE_SIGNALS
from sentinel.signals.kl import KlKind

CounterValues = Mapping[tuple[str, str], float]

MAX_LABEL_VALUES = 100
"""Number of label values of one of sentinel's own counters; the rest are summed as `other`."""

RUN_INFO_LABELS = ("framework", "framework_version", "algorithm", "model", "world_size")
"""Metadata that are labels of `sentinel_run_info`."""


def metric_families(
    run_state: RunState, detectors: Mapping[str, Severity], counts: CounterValues
) -> Iterator[Metric]:
    """All families of a run's state; before the run is known only sentinel's own counters."""
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
    reported = run_state.reported
    texts = {
        **{name: f"{value:.15g}" for name, value in reported.settings.items()},
        **reported.texts,
    }
    info = {name: sanitize_label(texts.get(name, "")) for name in RUN_INFO_LABELS}
    yield InfoMetricFamily("sentinel_run", "What is trained, and how.", {"run": run, **info})
    settings = {sanitize_label(name): value for name, value in reported.settings.items()}
    yield gauge(
        "sentinel_run_setting",
        "Numeric setting of the run, under the framework's own name.",
        ("run", "name"),
        (((run, name), value) for name, value in islice(settings.items(), MAX_LABEL_VALUES)),
    )
    yield run_gauge(
        "sentinel_run_active",
        "1 while the run is, or should be, training.",
        run,
        run_state.is_active,
    )
    yield gauge(
        "sentinel_run_state",
        "1 for the state the run is in.",
        ("run", "state"),
        (((run, state), state == run_state.state) for state in RUN_STATES),
    )
    if run_state.step is not None:
        yield run_gauge("sentinel_global_step", SIGNALS["global_step"].help, run, run_state.step)
    yield run_counter("sentinel_steps", "Training steps seen.", run, run_state.step_count)
    yield run_counter(
        "sentinel_checkpoints", "Checkpoint saves seen.", run, run_state.checkpoint_count
    )
    if not isnan(run_state.last_step_time):
        yield run_gauge(
            "sentinel_last_step_timestamp_seconds",
            "Time at which the last training step ended.",
            run,
            run_state.last_step_time,
        )
    if not isnan(run_state.last_checkpoint_time):
        yield run_gauge(
            "sentinel_last_checkpoint_timestamp_seconds",
            "Time at which the last checkpoint was written.",
            run,
            run_state.last_checkpoint_time,
        )


def _patch_families(run_state: RunState, run: str) -> Iterator[Metric]:
    counts = Counter(
        (sanitize_label(name), patch_state(status))
        for (name, _), status in run_state.reported.patches.items()
    )
    names = sorted({name for name, _ in counts})[:MAX_LABEL_VALUES]
    yield gauge(
        "sentinel_patch_up",
        "1 while the integration's patch is switched off in no rank.",
        ("run", "integration"),
        (((run, name), not counts[name, "off"]) for name in names),
    )
    yield gauge(
        "sentinel_patch_ranks",
        "Ranks by the state of the integration's patch in them.",
        ("run", "integration", "state"),
        (((run, name, state), counts[name, state]) for name in names for state in PATCH_STATES),
    )


def _signal_families(run_state: RunState, run: str) -> Iterator[Metric]:
    for name, value in run_state.signals.items():
        # Measurements of the node have families of their own, even if the run logs such a key.
        if name == "global_step" or name in NODE_SIGNALS:
            continue
        signal = SIGNALS[name]
        yield run_gauge(signal.metric, signal.help, run, value)
        spread = run_state.spreads.get(name)
        # A signal that is equal on all ranks by definition needs no families for its spread.
        if spread is not None and signal.combine_rule is not CombineRule.SAME:
            yield from _spread_families(signal, spread, run)
    yield _kl_family(run_state.kl_kinds, run)
    yield gauge(
        "sentinel_logged_value",
        "Last value logged under a key that is not in the catalogue.",
        ("run", "key"),
        (((run, key), value) for key, value in run_state.logged.items()),
    )
    yield run_counter(
        "sentinel_logged_values_hidden",
        "Logged values that are not exported because there are too many keys.",
        run,
        run_state.hidden_value_count,
    )


def _kl_family(kinds: Mapping[str, KlKind], run: str) -> Metric:
    labels = ("run", "signal", "pair", "estimator", "reduction")
    family = InfoMetricFamily(
        "sentinel_policy_kl", "Pair, estimator and reduction of each KL signal.", labels=labels
    )
    for name, kind in kinds.items():
        values = (run, name, kind.pair, sanitize_label(kind.estimator), kind.reduction)
        family.add_metric(values, {})
    return family


def _spread_families(signal: Signal, spread: Spread, run: str) -> Iterator[Metric]:
    lowest, highest, worst = signal.rank_metrics
    yield run_gauge(lowest, f"Lowest rank's value. {signal.help}", run, spread.min)
    yield run_gauge(highest, f"Highest rank's value. {signal.help}", run, spread.max)
    mean, std = signal.deviation_metrics
    yield run_gauge(mean, f"Mean of the ranks' values. {signal.help}", run, spread.mean)
    yield run_gauge(std, f"Standard deviation over ranks. {signal.help}", run, spread.std)
    yield run_gauge(worst, "Rank whose value is not finite, else highest.", run, worst_rank(spread))


def _rank_families(run_state: RunState, run: str) -> Iterator[Metric]:
    for name, help_ in LIVENESS_HELP.items():
        if name in run_state.liveness:
            yield run_gauge(f"sentinel_{name}", help_, run, run_state.liveness[name])
    yield run_gauge(
        "sentinel_ranks_hidden",
        "Ranks without series of their own: there are too many, and they are no outliers.",
        run,
        run_state.rank_selection.hidden_count,
    )
    ranks = [((run, str(rank)), state) for rank, state in run_state.shown_ranks.items()]
    yield gauge(
        "sentinel_rank_up",
        "1 while the rank's process is running.",
        ("run", "rank"),
        ((labels, state.up) for labels, state in ranks),
    )
    yield gauge(
        "sentinel_rank_step_duration_seconds",
        SIGNALS["step_time"].help,
        ("run", "rank"),
        ((labels, state.step_time) for labels, state in ranks if not isnan(state.step_time)),
    )
    yield gauge(
        "sentinel_rank_last_step_timestamp_seconds",
        "Time at which the rank's last training step ended.",
        ("run", "rank"),
        (
            (labels, state.last_step_time)
            for labels, state in ranks
            if not isnan(state.last_step_time)
        ),
    )


def _alert_families(
    run_state: RunState, run: str, detectors: Mapping[str, Severity]
) -> Iterator[Metric]:
    alerts, suppression = run_state.alerts, run_state.alerts.suppression
    # Alertmanager routes by this label, so the run's tier must apply to it too.
    firing = {
        (i.key.detector, suppression.notified_severity(i.severity).value)
        for i in alerts.open_incidents.values()
    }
    usual = {(name, severity.value) for name, severity in detectors.items()}
    pairs = sorted(usual | firing | alerts.alert_counts.keys())
    labels = ("run", "detector", "severity")
    yield gauge(
        "sentinel_alert_firing",
        "1 while the detector's alert is firing.",
        labels,
        (((run, *pair), pair in firing) for pair in pairs),
    )
    yield counter(
        "sentinel_alerts",
        "Alerts that started to fire.",
        labels,
        (((run, *pair), alerts.alert_counts[pair]) for pair in pairs),
    )
    names = sorted({name for name, _ in pairs})
    acknowledged = {
        i.key.detector for i in alerts.open_incidents.values() if suppression.acknowledgement(i)
    }
    yield gauge(
        "sentinel_alert_silenced",
        "1 while the detector's notifications are silenced.",
        ("run", "detector"),
        (((run, name), suppression.is_suppressed(name)) for name in names),
    )
    yield gauge(
        "sentinel_alert_acknowledged",
        "1 while the detector's alert is acknowledged.",
        ("run", "detector"),
        (((run, name), name in acknowledged) for name in names),
    )


def _diagnosis_family(run_state: RunState, run: str) -> Metric:
    confidence_by_cause: dict[str, float] = {}
    for case in run_state.alerts.open_cases:
        if case.diagnosis is not None:
            cause = sanitize_label(case.diagnosis.cause)
            confidence = max(case.diagnosis.confidence, confidence_by_cause.get(cause, 0.0))
            confidence_by_cause[cause] = confidence
    causes = sorted(confidence_by_cause)[:MAX_LABEL_VALUES]
    return gauge(
        "sentinel_diagnosis_confidence",
        "Confidence in the diagnosed cause of an open case, from 0 to 1.",
        ("run", "cause"),
        (((run, cause), confidence_by_cause[cause]) for cause in causes),
    )


def _own_counter_family(count: CounterFamily, run: str, counts: CounterValues) -> Metric:
    own_counts = sorted(
        (sanitize_label(value), n)
        for (family, value), n in counts.items()
        if family == count.family
    )
    # Different texts may be the same label value once they are cut.
    rows = [
        (value, sum(n for _, n in group))
        for value, group in groupby(own_counts, lambda row: row[0])
    ]
    shown, rest = rows[:MAX_LABEL_VALUES], rows[MAX_LABEL_VALUES:]
    if rest:
        shown.append(("other", sum(n for _, n in rest)))
    return counter(
        count.family.removesuffix("_total"),
        count.help,
        ("run", count.label),
        (((run, value), n) for value, n in shown),
    )
