"""Families: a run's standing as Prometheus metric families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from math import isnan

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sentinel import __version__
from sentinel.metrics.label import label
from sentinel.metrics.run_state import STATES, TAP_STATES, Standing, tap_state, worst_rank
from sentinel.model.counters import COUNTS, Count
from sentinel.model.finding import Severity
from sentinel.model.hardware import MEASURED
from sentinel.model.record import Spread
from sentinel.signals.catalogue import SIGNALS, Combine, Signal
from sentinel.signals.kl import KlKind

Counts = Mapping[tuple[str, str], float]

MOST_LABELS = 100
"""Label values that one of sentinel's own counters shows; the rest are counted as `other`."""

ABOUT = ("framework", "framework_version", "algorithm", "model", "world_size")
"""What a run says of itself that becomes a label of `sentinel_run_info`."""

LIVENESS = {
    "ranks_running": "Ranks whose process is there.",
    "ranks_gone": "Ranks whose process went away without a word.",
    "ranks_failed": "Ranks that ended by an error of their own.",
}
"""What a TICK counts, of all ranks, however many there are."""


def families(now: Standing, detectors: Mapping[str, Severity], counts: Counts) -> Iterator[Metric]:
    """All families of the page. Before a run is known there are only those about sentinel."""
    run = label(now.run)
    yield InfoMetricFamily("sentinel_build", "Version of sentinel.", {"version": __version__})
    for count in COUNTS:
        yield _own_counter(count, run, counts)
    if run:
        yield from _about_the_run(now, run)
        yield from _about_taps(now, run)
        yield from _about_signals(now, run)
        yield from _about_ranks(now, run)
        yield from _about_alerts(now, run, detectors)
        yield _about_causes(now, run)


def _about_the_run(now: Standing, run: str) -> Iterator[Metric]:
    told = {**{name: f"{value:.15g}" for name, value in now.settings.items()}, **now.about}
    about = {name: label(told.get(name, "")) for name in ABOUT}
    yield InfoMetricFamily("sentinel_run", "What is trained, and how.", {"run": run, **about})
    settings = {label(name): value for name, value in now.settings.items()}
    yield _labelled(
        GaugeMetricFamily(
            "sentinel_run_setting",
            "What the run says it was set to, by the framework's own name.",
            labels=("run", "name"),
        ),
        (((run, name), value) for name, value in islice(settings.items(), MOST_LABELS)),
    )
    yield _gauge(
        "sentinel_run_active", "1 while the run is, or should be, training.", run, now.active
    )
    yield _labelled(
        GaugeMetricFamily(
            "sentinel_run_state", "1 for the state the run is in.", labels=("run", "state")
        ),
        (((run, state), state == now.state) for state in STATES),
    )
    if now.step is not None:
        yield _gauge("sentinel_global_step", SIGNALS["global_step"].help, run, now.step)
    yield _counter("sentinel_steps", "Training steps seen.", run, now.steps)
    yield _counter("sentinel_checkpoints", "Checkpoints seen being written.", run, now.saves)
    for name, help_, when in (
        ("step", "When the last training step ended.", now.last_step),
        ("checkpoint", "When the last checkpoint was written.", now.last_save),
    ):
        if not isnan(when):
            yield _gauge(f"sentinel_last_{name}_timestamp_seconds", help_, run, when)


def _about_taps(now: Standing, run: str) -> Iterator[Metric]:
    counted = Counter((label(name), tap_state(told)) for (name, _), told in now.taps.items())
    names = sorted({name for name, _ in counted})[:MOST_LABELS]
    yield _labelled(
        GaugeMetricFamily(
            "sentinel_tap_up",
            "1 while no rank's tap of that integration has switched itself off.",
            labels=("run", "integration"),
        ),
        (((run, name), not counted[name, "off"]) for name in names),
    )
    yield _labelled(
        GaugeMetricFamily(
            "sentinel_tap_ranks",
            "Ranks by how the integration's tap is in them.",
            labels=("run", "integration", "state"),
        ),
        (((run, name, state), counted[name, state]) for name in names for state in TAP_STATES),
    )


def _about_signals(now: Standing, run: str) -> Iterator[Metric]:
    for name, value in now.signals.items():
        # What is measured of the machine has families of its own, whoever logs the like.
        if name == "global_step" or name in MEASURED:
            continue
        signal = SIGNALS[name]
        yield _gauge(signal.metric, signal.help, run, value)
        spread = now.spreads.get(name)
        # Where every rank should say the same, how they differ is not worth five families.
        if spread is not None and signal.combine is not Combine.SAME:
            yield from _about_spread(signal, spread, run)
    yield _about_kl(now.kl_kinds, run)
    yield _labelled(
        GaugeMetricFamily(
            "sentinel_logged_value",
            "Last value logged under a key of one's own.",
            labels=("run", "key"),
        ),
        (((run, key), value) for key, value in now.logged.items()),
    )
    yield _counter(
        "sentinel_logged_values_unshown",
        "Logged values left off this page because there are too many keys.",
        run,
        now.unshown,
    )


def _about_kl(kinds: Mapping[str, KlKind], run: str) -> Metric:
    names = ("run", "signal", "pair", "estimator", "reduction")
    family = InfoMetricFamily(
        "sentinel_policy_kl", "Which of the quantities called KL each signal is.", labels=names
    )
    for name, kind in kinds.items():
        told = (run, name, kind.pair, label(kind.estimator), kind.reduction)
        family.add_metric(told, {})
    return family


def _about_spread(signal: Signal, spread: Spread, run: str) -> Iterator[Metric]:
    lowest, highest, worst = signal.rank_metrics
    yield _gauge(lowest, f"Lowest rank's value. {signal.help}", run, spread.min)
    yield _gauge(highest, f"Highest rank's value. {signal.help}", run, spread.max)
    mean, std = signal.deviation_metrics
    yield _gauge(mean, f"Mean of the ranks' values. {signal.help}", run, spread.mean)
    yield _gauge(std, f"Standard deviation over ranks. {signal.help}", run, spread.std)
    yield _gauge(worst, "Rank whose value is not finite, else highest.", run, worst_rank(spread))


def _about_ranks(now: Standing, run: str) -> Iterator[Metric]:
    for name, help_ in LIVENESS.items():
        if name in now.alive:
            yield _gauge(f"sentinel_{name}", help_, run, now.alive[name])
    yield _gauge(
        "sentinel_ranks_unshown",
        "Ranks without series of their own, since there are too many and they do not stand out.",
        run,
        now.crowd.unshown,
    )
    ranks = [((run, str(rank)), known) for rank, known in now.ranks.items()]
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
        yield _labelled(family, rows)


def _about_alerts(now: Standing, run: str, detectors: Mapping[str, Severity]) -> Iterator[Metric]:
    quiet = now.quiet
    # Alertmanager wakes people by this label, and the run's tier holds for it too.
    firing = {(i.key.detector, quiet.severity(i.severity).value) for i in now.open.values()}
    usual = {(name, severity.value) for name, severity in detectors.items()}
    pairs = sorted(usual | firing | now.alerts.keys())
    labels = ("run", "detector", "severity")
    yield _labelled(
        GaugeMetricFamily(
            "sentinel_alert_firing", "1 while the detector's alert is firing.", labels=labels
        ),
        (((run, *pair), pair in firing) for pair in pairs),
    )
    yield _labelled(
        CounterMetricFamily("sentinel_alerts", "Alerts that began to fire.", labels=labels),
        (((run, *pair), now.alerts[pair]) for pair in pairs),
    )
    names = sorted({name for name, _ in pairs})
    in_hand = {i.key.detector for i in now.open.values() if quiet.ack_of(i)}
    for word, help_, of in (
        ("silenced", "1 while nobody is told of the detector's alerts.", quiet.hushes),
        ("acknowledged", "1 while somebody has the alert in hand.", in_hand.__contains__),
    ):
        family = GaugeMetricFamily(f"sentinel_alert_{word}", help_, labels=("run", "detector"))
        yield _labelled(family, (((run, name), of(name)) for name in names))


def _about_causes(now: Standing, run: str) -> Metric:
    named = [page.diagnosis for page in now.open_cases if page.diagnosis is not None]
    surest: dict[str, float] = {}
    for known in named:
        cause = label(known.cause)
        surest[cause] = max(known.confidence, surest.get(cause, 0.0))
    return _labelled(
        GaugeMetricFamily(
            "sentinel_diagnosis_confidence",
            "How far the named cause of an open case is believed in, from 0 to 1.",
            labels=("run", "cause"),
        ),
        (((run, cause), surest[cause]) for cause in sorted(surest)[:MOST_LABELS]),
    )


def _own_counter(count: Count, run: str, counts: Counts) -> Metric:
    mine = sorted(
        (label(value), n) for (family, value), n in counts.items() if family == count.family
    )
    # Two texts may be one label once they are cut.
    rows = [(value, sum(n for _, n in same)) for value, same in groupby(mine, lambda row: row[0])]
    shown, rest = rows[:MOST_LABELS], rows[MOST_LABELS:]
    if rest:
        shown.append(("other", sum(n for _, n in rest)))
    family = CounterMetricFamily(
        count.family.removesuffix("_total"), count.help, labels=("run", count.label)
    )
    return _labelled(family, (((run, value), n) for value, n in shown))


def _gauge(name: str, help_: str, run: str, value: float) -> Metric:
    return _labelled(GaugeMetricFamily(name, help_, labels=("run",)), [((run,), value)])


def _counter(name: str, help_: str, run: str, value: float) -> Metric:
    return _labelled(CounterMetricFamily(name, help_, labels=("run",)), [((run,), value)])


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily,
    rows: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family
