"""Metrics reference: writes docs/metrics.md from the signal catalogue and a sample exposition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client.metrics_core import Metric

from sentinel.signals.catalogue import SIGNAL_GROUPS, SIGNALS, CombineRule, Signal
from sentinel.signals.key_map import (
    FRAMEWORK_KEYS,
    FRAMEWORK_METADATA_KEYS,
    UNAMBIGUOUS_KEYS,
    KeyMapping,
)
from sentinel.signals.kl import KL_USAGES, infer_kl_kind
from tools.generate.detector_docs import DetectorDoc
from tools.generate.sample_exposition import sample_metrics

_NOTE = (
    "<!-- Written by `make generate` from `sentinel/signals` and `sentinel/metrics`; edit those "
    "instead. -->"
)

_COMBINE_TEXTS: Mapping[CombineRule, str] = MappingProxyType(
    {
        CombineRule.MEAN: "mean",
        CombineRule.SUM: "sum",
        CombineRule.MAX: "highest",
        CombineRule.MIN: "lowest",
        CombineRule.NORM: "root of the sum of squares",
        CombineRule.SAME: "the same on all",
    }
)
_SERIES_TEXTS = MappingProxyType({"gpu": "one per `gpu`", "disk": "one per disk", "host": "one"})

_KL_PAIR_TEXTS = MappingProxyType(
    {"ref": "the reference", "old": "the policy that sampled", "mismatch": "the sampling engine"}
)

_SIGNALS_TEXT = """\
## Signals

A signal is a measured quantity of a run. Its metric has the label `run` and is the combined value
of all ranks. There are also `<metric>_rank_min` and `<metric>_rank_max` (before the unit suffix)
over all ranks; and if ranks may differ, `<metric>_rank_mean`, `<metric>_rank_std` and
`<metric>_worst_rank` (a rank whose value is not finite, otherwise the rank with the highest value).

Series of single ranks have the label `rank`. They exist for the lowest `per_rank_limit` ranks
(default 64) and for up to 16 further ranks that stand out: named by a firing alert, dead, with
non-finite values, late, different from the others where all must be equal, or the slowest in a
quarter of the last steps. `sentinel_ranks_hidden` counts the ranks without series. The score that
makes a rank stand out decays over about 180 steps, so that series do not flap; series of a past
attempt are removed at once.

A key that you or your framework log under one of the other names is mapped to the same signal,
regardless of case and of a leading `train/`. `eval/<key>` and `eval_<key>` are mapped to
`eval_<signal>`, never to the signal itself.

A key that is not listed is mapped by its words, if the run logs no listed key for that signal:
`AverageEpRet` and `env_runners/episode_return_mean` are `reward`, `lm loss` and `train_mean_nll`
are `loss`, `average_val_loss` is `eval_loss`, `gnorm` is `grad_norm`. Words such as `std`, `max`,
`target`, `coef` or `clip` make a key another quantity; the reward of one function, a penalty and an
auxiliary or adversarial loss are not the reward or the loss. A component (`train/loss_vae`) stands
for the loss if four records hold no total. Of several such keys a total comes before a mean, a mean
before others; a key that is in less than half as many of the first eight records as another does
not count. The reward of evaluations stands for the reward where eight records hold neither a reward
nor a loss of training. A KL and an entropy are taken from words only in a run that trains a policy.

The settings decide what sentinel cannot know:

```toml
[keys]
"kl/divergence" = "kl_ref"
```

A key without a mapping is stored under its own name and exported as
`sentinel_logged_value{key="..."}`."""

_KL_TEXT = """\
Trainers call three quantities KL: the divergence of the policy from its frozen reference, from the
policy that sampled the batch, and of the sampling engine from the trainer. Each has several
estimators, as a mean over tokens or a sum over a sequence, and a threshold for one does not fit
another. `sentinel_policy_kl_info` identifies the one that a run logs by its labels `pair`,
`estimator` and `reduction`, derived from framework, version, algorithm and keys."""

_REWARD_TEXT = """\
The reward of each function is stored as `rewards/<function>/mean` and `rewards/<function>/std`, for
every version of TRL."""

_KEY_MAP_TEXT = """\
### Keys whose meaning depends on the framework

The client reports the framework and its algorithm. In a log they are inferred from the keys."""

_KL_KINDS_TEXT = """\
### KL estimators by key

With d the difference of two log-probabilities of a sampled token, k1 is d, k2 is d^2 / 2 and k3 is
exp(-d) - 1 + d. The run metadata `kl_estimator` and `kl_reduction` override this table."""

_GROUP_TEXTS = MappingProxyType({"KL divergence": _KL_TEXT, "Reward and preference": _REWARD_TEXT})

_OWN_METRICS_HEADING = """\
## Metrics of the run state and of sentinel

Every series has the label `run`, the id of the run. A restart with the same id, as of a requeued
job or with `SENTINEL_RUN_ID`, continues the series; a run with an id of its own adds as many series
as `scrape_series_added` shows for its agent.

Goodput is the share of productive time. Of the last hour, and of the whole run:

    sum without (activity) (rate(sentinel_run_time_seconds_total{activity="productive"}[1h]))
      / sum without (activity) (rate(sentinel_run_time_seconds_total[1h]))
    sum without (activity) (sentinel_run_time_seconds_total{activity="productive"})
      / sum without (activity) (sentinel_run_time_seconds_total)

`startup` is the time from the start of an attempt to its first step, `down` that between attempts.
`evaluation` and `checkpoint` are declared phases, else the time from a step to the event of an
evaluation or a checkpoint. `stalled` is time in which `run_stalled` fires, from the last step on.
`lost` are steps that are done again after a restart, and a last step that did not complete.
The seconds and the histogram of step times continue when an agent is started again."""


def metrics_page(docs: Iterable[DetectorDoc]) -> str:
    """Text of docs/metrics.md."""
    return "\n".join(_page(list(docs)))


def _page(docs: list[DetectorDoc]) -> Iterator[str]:
    yield from ("# Metrics", "", _NOTE, "", _SIGNALS_TEXT, "")
    for title, signals in SIGNAL_GROUPS.items():
        yield from (f"### {title}", "")
        if title in _GROUP_TEXTS:
            yield from (_GROUP_TEXTS[title], "")
        yield from _signal_rows(signals, docs)
    yield from (_KEY_MAP_TEXT, "", *_key_map_rows(), "", _KL_KINDS_TEXT, "", *_kl_kind_rows(), "")
    yield from (
        _OWN_METRICS_HEADING,
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    )
    signal_metrics = {name for signal in SIGNALS.values() for name in _metric_names(signal)}
    yield from sorted(
        _family_row(family) for family in sample_metrics() if family.name not in signal_metrics
    )
    yield ""


def _key_map_rows() -> Iterator[str]:
    yield "| framework | algorithm | key | signal | remark |"
    yield "|---|---|---|---|---|"
    for (framework, algorithm), keys in {("", ""): UNAMBIGUOUS_KEYS, **FRAMEWORK_KEYS}.items():
        for key, mapping in keys.items():
            remark = _key_remark(mapping)
            yield _table_row((framework, algorithm, f"`{key}`", f"`{mapping.name}`", remark))


def _key_remark(mapping: KeyMapping) -> str:
    if mapping.zero_is_missing:
        return "0 means missing; ignored"
    return f"times {mapping.factor:g}" if mapping.factor != 1.0 else ""


def _kl_kind_rows() -> Iterator[str]:
    yield "| key | framework | algorithm | since | compared with | estimator | may be negative |"
    yield "|---|---|---|---|---|---|---|"
    for usage in KL_USAGES:
        if not usage.kind.is_known:
            continue
        keys = " ".join(f"`{key}`" for key in usage.keys.split())
        since = ".".join(map(str, usage.min_version))
        values = (usage.framework, since, usage.algorithms.partition(" ")[0])
        metadata = dict(zip(FRAMEWORK_METADATA_KEYS, values, strict=True))
        kind = infer_kl_kind(usage.keys.partition(" ")[0], metadata) or usage.kind
        sign = "yes" if kind.signed else ""
        pair, estimator = _KL_PAIR_TEXTS[kind.pair], kind.describe()
        yield _table_row((keys, usage.framework, usage.algorithms, since, pair, estimator, sign))


def _signal_rows(signals: Iterable[Signal], docs: list[DetectorDoc]) -> Iterator[str]:
    yield "| signal | metric | unit | over ranks | meaning | other names | detectors |"
    yield "|---|---|---|---|---|---|---|"
    for signal in signals:
        detectors = (
            f"[{s.name}](runbooks/{s.name}.md)"
            for s in docs
            if s.signal is signal or signal.name in getattr(s.detector, "reads", ())
        )
        cells = (
            f"`{signal.name}`",
            f"`{signal.metric}`",
            signal.unit,
            _SERIES_TEXTS.get(signal.entity) or _COMBINE_TEXTS[signal.combine_rule],
            signal.help,
            " ".join(f"`{alias}`" for alias in signal.aliases),
            " ".join(detectors),
        )
        yield _table_row(cells)
    yield ""


def _family_row(family: Metric) -> str:
    labels = sorted({name for sample in family.samples for name in sample.labels} - {"run"})
    total = "_total" if family.type == "counter" else ""
    info = "_info" if family.type == "info" else ""
    names = " ".join(f"`{label}`" for label in labels)
    return _table_row((f"`{family.name}{total}{info}`", family.type, names, family.documentation))


def _table_row(cells: Iterable[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def _metric_names(signal: Signal) -> tuple[str, ...]:
    return (signal.metric, *signal.rank_metrics, *signal.deviation_metrics)
