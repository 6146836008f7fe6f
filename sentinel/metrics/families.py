"""Prometheus metric families of a run's state and of sentinel's own counters."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from math import isnan

from sentinel import __version__
from sentinel.metrics.family import Family, FamilyBuilder
from sentinel.metrics.label import sanitize_label
from sentinel.metrics.reported_metadata import PATCH_STATES, patch_state
from sentinel.metrics.run_state import LIVENESS_HELP, RUN_STATES, RunState, worst_rank
from sentinel.model.counters import COUNTER_FAMILIES, CounterFamily
from sentinel.model.finding import Severity
from sentinel.model.record import Spread
from sentinel.signals.catalogue import SIGNALS, CombineRule, Signal
from sentinel.signals.hardware import GPU_SIGNALS, HOST_SIGNALS, NODE_SIGNALS, NodeMeasurements
from sentinel.signals.kl import KlKind

CounterValues = Mapping[tuple[str, str], float]

MAX_LABEL_VALUES = 100
"""Number of label values of one of sentinel's own counters; the rest are summed as `other`."""

RUN_INFO_LABELS = ("framework", "framework_version", "algorithm", "model", "world_size")
"""Metadata that are labels of `sentinel_run_info`."""


def metric_families(
    run_state: RunState, detectors: Mapping[str, Severity], counts: CounterValues
) -> Iterator[Family]:
    """All families of a run's state; before the run is known only sentinel's own counters."""
    build = FamilyBuilder(sanitize_label(run_state.run))
    yield Family(
        "sentinel_build", "Version of sentinel.", "info", None, ("version",), {__version__: 1.0}
    )
    for count in COUNTER_FAMILIES:
        yield _own_counter_family(build, count, counts)
    if build.run:
        yield from _run_families(build, run_state)
        yield from _patch_families(build, run_state)
        yield from _signal_families(build, run_state)
        yield from _rank_families(build, run_state)
        yield from _alert_families(build, run_state, detectors)


def _run_families(build: FamilyBuilder, run_state: RunState) -> Iterator[Family]:
    reported = run_state.reported
    texts = {
        **{name: f"{value:.15g}" for name, value in reported.settings.items()},
        **reported.texts,
    }
    info = tuple(sanitize_label(texts.get(name, "")) for name in RUN_INFO_LABELS)
    yield build.info("sentinel_run", "What is trained, and how.", [info], *RUN_INFO_LABELS)
    settings = {sanitize_label(name): value for name, value in reported.settings.items()}
    yield build.gauge(
        "sentinel_run_setting",
        "Numeric setting of the run, under the framework's own name.",
        dict(islice(settings.items(), MAX_LABEL_VALUES)),
        "name",
    )
    yield build.gauge(
        "sentinel_run_active", "1 while the run is, or should be, training.", run_state.is_active
    )
    if run_state.attempt >= 0:
        yield build.gauge(
            "sentinel_attempt_start_timestamp_seconds",
            "Time at which the newest attempt of the run started; the first is 1.",
            {str(run_state.attempt + 1): run_state.attempt_start_time},
            "attempt",
        )
    states = {state: state == run_state.state for state in RUN_STATES}
    yield build.gauge("sentinel_run_state", "1 for the state the run is in.", states, "state")
    if run_state.step is not None:
        yield build.gauge("sentinel_global_step", SIGNALS["global_step"].help, run_state.step)
    yield build.counter("sentinel_steps", "Training steps seen.", run_state.step_count)
    yield build.counter(
        "sentinel_checkpoints", "Checkpoint saves seen.", run_state.checkpoint_count
    )
    yield build.histogram(
        "sentinel_step_time_seconds", SIGNALS["step_time"].help, run_state.time_use.step_times
    )
    yield build.counter(
        "sentinel_run_time_seconds",
        "Time of the run by what it is used for; the sum is the wall time.",
        run_state.time_use.seconds,
        "activity",
    )
    if not isnan(run_state.last_step_time):
        yield build.gauge(
            "sentinel_last_step_timestamp_seconds",
            "Time at which the last training step ended.",
            run_state.last_step_time,
        )
    if not isnan(run_state.last_checkpoint_time):
        yield build.gauge(
            "sentinel_last_checkpoint_timestamp_seconds",
            "Time at which the last checkpoint was written.",
            run_state.last_checkpoint_time,
        )


def _patch_families(build: FamilyBuilder, run_state: RunState) -> Iterator[Family]:
    counts = Counter(
        (sanitize_label(name), patch_state(status))
        for (name, _), status in run_state.reported.patches.items()
    )
    names = sorted({name for name, _ in counts})[:MAX_LABEL_VALUES]
    yield build.gauge(
        "sentinel_patch_up",
        "1 while the integration's patch is switched off in no rank.",
        {name: not counts[name, "off"] for name in names},
        "integration",
    )
    yield build.gauge(
        "sentinel_patch_ranks",
        "Ranks by the state of the integration's patch in them.",
        {(name, state): counts[name, state] for name in names for state in PATCH_STATES},
        "integration",
        "state",
    )


def _signal_families(build: FamilyBuilder, run_state: RunState) -> Iterator[Family]:
    for name, value in run_state.signals.items():
        # Measurements of the node have families of their own, even if the run logs such a key.
        if name == "global_step" or name in NODE_SIGNALS:
            continue
        signal = SIGNALS[name]
        yield build.gauge(signal.metric, signal.help, value)
        spread = run_state.spreads.get(name)
        if spread is not None:
            yield from _spread_families(build, signal, spread)
    coverage = run_state.coverage
    yield build.gauge(
        "sentinel_monitored_signals",
        "Signals of the run that show how well it learns and that detectors read.",
        len(coverage.monitored),
    )
    yield build.gauge(
        "sentinel_unmonitored_keys",
        "Logged keys that look like training signals and that no detector reads; see [keys].",
        len(coverage.unmonitored) if coverage.is_settled else 0,
    )
    yield _kl_family(build, run_state.kl_kinds)
    yield build.gauge(
        "sentinel_logged_value",
        "Last value logged under a key that is not in the catalogue.",
        run_state.logged,
        "key",
    )
    yield build.counter(
        "sentinel_logged_values_hidden",
        "Logged values that are not exported because there are too many keys.",
        run_state.hidden_value_count,
    )


def _kl_family(build: FamilyBuilder, kinds: Mapping[str, KlKind]) -> Family:
    return build.info(
        "sentinel_policy_kl",
        "Pair, estimator and reduction of each KL signal.",
        [
            (name, kind.pair, sanitize_label(kind.estimator), kind.reduction)
            for name, kind in kinds.items()
        ],
        "signal",
        "pair",
        "estimator",
        "reduction",
    )


def _spread_families(build: FamilyBuilder, signal: Signal, spread: Spread) -> Iterator[Family]:
    lowest, highest, worst = signal.rank_metrics
    yield build.gauge(lowest, f"Lowest rank's value. {signal.help}", spread.min)
    yield build.gauge(highest, f"Highest rank's value. {signal.help}", spread.max)
    if signal.combine_rule is CombineRule.SAME:
        # Where all ranks should be equal, lowest and highest show whether they are.
        return
    mean, std = signal.deviation_metrics
    yield build.gauge(mean, f"Mean of the ranks' values. {signal.help}", spread.mean)
    yield build.gauge(std, f"Standard deviation over ranks. {signal.help}", spread.std)
    yield build.gauge(worst, "Rank whose value is not finite, else highest.", worst_rank(spread))


def _rank_families(build: FamilyBuilder, run_state: RunState) -> Iterator[Family]:
    for name, help_ in LIVENESS_HELP.items():
        if name in run_state.liveness:
            yield build.gauge(f"sentinel_{name}", help_, run_state.liveness[name])
    yield build.gauge(
        "sentinel_ranks_hidden",
        "Ranks without series of their own: there are too many, and they are no outliers.",
        run_state.rank_selection.hidden_count,
    )
    ranks = {str(rank): state for rank, state in run_state.shown_ranks.items()}
    up = {rank: state.up for rank, state in ranks.items()}
    yield build.gauge("sentinel_rank_up", "1 while the rank's process is running.", up, "rank")
    yield build.gauge(
        "sentinel_rank_step_duration_seconds",
        SIGNALS["step_time"].help,
        {rank: state.step_time for rank, state in ranks.items() if not isnan(state.step_time)},
        "rank",
    )
    ended = {rank: state.last_step_time for rank, state in ranks.items()}
    yield build.gauge(
        "sentinel_rank_last_step_timestamp_seconds",
        "Time at which the rank's last training step ended.",
        {rank: time for rank, time in ended.items() if not isnan(time)},
        "rank",
    )


def _alert_families(
    build: FamilyBuilder, run_state: RunState, detectors: Mapping[str, Severity]
) -> Iterator[Family]:
    alerts, suppression = run_state.alerts, run_state.alerts.suppression
    # Alertmanager routes by this label, so the run's tier must apply to it too.
    firing = {
        (i.key.detector, suppression.notified_severity(i.severity).value)
        for i in alerts.open_incidents.values()
    }
    usual = {(name, severity.value) for name, severity in detectors.items()}
    pairs = sorted(usual | firing | alerts.alert_counts.keys())
    yield build.gauge(
        "sentinel_alert_firing",
        "1 while the detector's alert is firing.",
        {pair: pair in firing for pair in pairs},
        "detector",
        "severity",
    )
    yield build.counter(
        "sentinel_alerts",
        "Alerts that started to fire.",
        {pair: alerts.alert_counts[pair] for pair in pairs},
        "detector",
        "severity",
    )
    yield from _threshold_families(build, run_state)
    names = sorted({name for name, _ in pairs})
    acknowledged = {
        i.key.detector for i in alerts.open_incidents.values() if suppression.acknowledgement(i)
    }
    yield build.gauge(
        "sentinel_alert_silenced",
        "1 while the detector's notifications are silenced.",
        {name: suppression.is_suppressed(name) for name in names},
        "detector",
    )
    yield build.gauge(
        "sentinel_alert_acknowledged",
        "1 while the detector's alert is acknowledged.",
        {name: name in acknowledged for name in names},
        "detector",
    )


def _threshold_families(build: FamilyBuilder, run_state: RunState) -> Iterator[Family]:
    thresholds = {
        (detector, signal): threshold
        for detector, (signal, threshold) in sorted(run_state.thresholds.items())
        if signal in run_state.signals
    }
    yield build.gauge(
        "sentinel_detector_value",
        "Newest value of the signal that the detector compares with its threshold.",
        {pair: run_state.signals[pair[1]] for pair in thresholds},
        "detector",
        "signal",
    )
    yield build.gauge(
        "sentinel_detector_threshold",
        "Value of the signal from which on the detector would find a problem.",
        thresholds,
        "detector",
        "signal",
    )


def _own_counter_family(
    build: FamilyBuilder, count: CounterFamily, counts: CounterValues
) -> Family:
    # Different texts may be the same label value once they are cut.
    totals: dict[str, float] = {}
    for (family, value), n in counts.items():
        if family == count.family:
            totals[sanitize_label(value)] = totals.get(sanitize_label(value), 0.0) + n
    rows = sorted(totals.items())
    shown, rest = dict(rows[:MAX_LABEL_VALUES]), rows[MAX_LABEL_VALUES:]
    if rest:
        shown["other"] = shown.get("other", 0.0) + sum(n for _, n in rest)
    return build.counter(count.family.removesuffix("_total"), count.help, shown, count.label)


def machine_families(
    machine: NodeMeasurements, run: str, scheduler_job: str = ""
) -> Iterator[Family]:
    """Families of the newest measurements; a part that returned none has no samples.

    `scheduler_job` is the id of the job of Slurm, if it is one.
    """
    build = FamilyBuilder(sanitize_label(run))
    yield build.gauge(
        "sentinel_machine_sample_timestamp_seconds",
        "Time of the last successful measurement of that part of the machine.",
        dict(sorted(machine.measured_at.items())),
        "part",
    )
    for name in HOST_SIGNALS:
        if name in machine.host_values:
            yield build.gauge(*_metric_and_help(name), machine.host_values[name])
    free_bytes = dict(sorted(machine.free_bytes.items()))
    yield build.gauge(*_metric_and_help("disk_free"), free_bytes, "stores")
    yield from _gpu_families(build, machine, scheduler_job)


def _gpu_families(
    build: FamilyBuilder, machine: NodeMeasurements, scheduler_job: str
) -> Iterator[Family]:
    rows, node, job = [], sanitize_label(os.uname().nodename), sanitize_label(scheduler_job)
    for gpu in machine.gpus:
        ranks = ",".join(map(str, machine.ranks_by_gpu.get(gpu.index, ())))
        texts = map(sanitize_label, (gpu.name, gpu.uuid, ranks))
        rows.append((str(gpu.index), node, job, *texts))
    yield build.info(
        "sentinel_gpu",
        "Node, job of Slurm, name and UUID of the GPU, and the ranks on it.",
        rows,
        "gpu",
        "node",
        "scheduler_job",
        "name",
        "uuid",
        "ranks",
    )
    gpus = {str(gpu.index): gpu for gpu in machine.gpus}
    yield build.gauge(
        "sentinel_gpu_up",
        "1 while the GPU answers; 0 if it fell off the bus.",
        {index: not gpu.is_lost for index, gpu in gpus.items()},
        "gpu",
    )
    for name in GPU_SIGNALS:
        values = {index: gpu.values[name] for index, gpu in gpus.items() if name in gpu.values}
        if values:
            yield build.gauge(*_metric_and_help(name), values, "gpu")
    yield build.gauge(
        "sentinel_gpu_throttle_reason",
        "1 for each reason for which the GPU's clock is reduced.",
        {(index, reason): 1.0 for index, gpu in gpus.items() for reason in gpu.throttle_reasons},
        "gpu",
        "reason",
    )


def _metric_and_help(name: str) -> tuple[str, str]:
    signal = SIGNALS[name]
    return signal.metric, signal.help
