"""The board of single ranks: stragglers, departures, and where ranks differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sentinel.model.evidence_text import label_of
from sentinel.signals.catalogue import SIGNALS, CombineRule
from tools.generate.boards.shared_panels import (
    ATTEMPT_VARIABLE,
    AVERAGE,
    CLUSTER_VARIABLE,
    RUN,
    RUN_MATCHERS,
    RUN_VARIABLE,
    departures_panel,
    extremes,
    lines_panel,
    run_board,
    small_stat_panel,
    unit_of,
)
from tools.generate.panels import (
    BAD,
    GOOD,
    LabelVariable,
    PanelOptions,
    PanelQuery,
    collapsible_row,
    heat_map_panel,
    state_timeline_panel,
    time_series_panel,
)

RANKS = f'{{{RUN_MATCHERS},rank=~"$rank"}}'
"""Selects the series of the chosen ranks, by default of all that have series."""

_DEVIATING = (
    "step_time",
    "data_wait",
    "compute_time",
    "generation_time",
    "loss",
    "grad_norm_local",
)
_EQUAL = ("learning_rate", "loss_scale", "kl_coef")
_WORST = ("step_time", "data_wait", "loss", "grad_norm")
_RANK_DIGITS = 5


def ranks_board() -> str:
    """JSON of the board."""
    panels = [
        *_stat_panels(),
        *_time_panels(),
        *_life_panels(),
        collapsible_row("Worst rank", [_worst_rank_panel(name) for name in _WORST]),
        collapsible_row("Spread over ranks", [_deviation_panel(name) for name in _DEVIATING]),
        collapsible_row("Equal on all ranks", [_difference_panel(name) for name in _EQUAL]),
    ]
    return run_board(
        "Ranks",
        "sentinel-ranks",
        "Which rank is slow, gone or different from the others.",
        panels,
        (
            CLUSTER_VARIABLE,
            RUN_VARIABLE,
            ATTEMPT_VARIABLE,
            LabelVariable("rank", f"sentinel_rank_up{RUN}", is_multi=True, is_number=True),
        ),
    )


def _stat_panels() -> Iterator[Any]:
    yield small_stat_panel(
        "Running", "Ranks whose process runs.", f"max(sentinel_ranks_running{RUN})"
    ).span(4)
    yield small_stat_panel(
        "Gone",
        "Ranks whose process disappeared without a report of its end.",
        f"max(sentinel_ranks_gone{RUN})",
        colours={0: GOOD, 1: BAD},
    ).span(4)
    yield small_stat_panel(
        "Failed",
        "Ranks that ended with an error.",
        f"max(sentinel_ranks_failed{RUN})",
        colours={0: GOOD, 1: BAD},
    ).span(4)
    step_time = f"sentinel_rank_step_duration_seconds{RUN}"
    yield small_stat_panel(
        "Slowest to median",
        "Step time of the slowest rank, relative to the median of the ranks with series.",
        f"max({step_time}) / quantile(0.5, {step_time})",
    ).span(4)
    yield small_stat_panel(
        "Behind",
        "How long ago the last step of the last rank ended, seen from the first rank.",
        f"max(sentinel_rank_last_step_timestamp_seconds{RUN}) "
        f"- min(sentinel_rank_last_step_timestamp_seconds{RUN})",
        unit="s",
    ).span(4)
    yield small_stat_panel(
        "Without series",
        "Ranks that are no outliers, above `per_rank_limit`.",
        f"max(sentinel_ranks_hidden{RUN})",
    ).span(4)


def _time_panels() -> Iterator[Any]:
    step_time = f"sentinel_rank_step_duration_seconds{RANKS}"
    last_step = f"sentinel_rank_last_step_timestamp_seconds{RANKS}"
    behind = f"scalar(max(sentinel_rank_last_step_timestamp_seconds{RUN})) - {last_step}"
    yield heat_map_panel(
        PanelOptions(
            "Step time by rank",
            "A row per rank. One that stands out is a straggler: check its node. A column that "
            "stands out is a slow step of all ranks. Metric: sentinel_rank_step_duration_seconds",
            unit="s",
            width=24,
            height=10,
        ),
        PanelQuery(_in_order(step_time), "{{rank}}"),
    )
    yield lines_panel(
        "Slowest ranks",
        "Step time of the four slowest ranks of the range, and of the four fastest. A rank far "
        "above the others slows all of them.",
        PanelQuery(extremes(step_time, AVERAGE.format(step_time), "rank"), "rank {{rank}}"),
        unit="s",
    )
    yield lines_panel(
        "Ranks behind",
        "The four ranks whose last step is the longest before that of the first rank.",
        PanelQuery(extremes(behind, f"-{AVERAGE.format(last_step)}", "rank", 0), "rank {{rank}}"),
        unit="s",
    )
    yield heat_map_panel(
        PanelOptions(
            "Distribution of step times",
            "Steps by their duration in seconds; a second band is often an evaluation or a save. "
            "Metric: sentinel_step_time_seconds_bucket",
            unit="s",
            width=8,
        ),
        PanelQuery(
            f"sum by (le) (increase(sentinel_step_time_seconds_bucket{RUN}[$__rate_interval]))",
            "{{le}}",
        ),
        has_buckets=True,
    )


def _life_panels() -> Iterator[Any]:
    yield state_timeline_panel(
        PanelOptions(
            "Processes",
            "Whether the process of each rank runs. Start with the first that ended. "
            "Metric: sentinel_rank_up",
            width=16,
            height=14,
        ),
        PanelQuery(_in_order(f"max by (rank) (sentinel_rank_up{RANKS})"), "rank {{rank}}"),
        {0: ("gone", BAD), 1: ("up", GOOD)},
    )
    yield departures_panel(8, 14)


def _worst_rank_panel(name: str) -> Any:
    signal = SIGNALS[name]
    worst = signal.rank_metrics[2]
    return lines_panel(
        label_of(signal.name),
        "Number of the rank with the highest value. One that stays is at fault; one that changes "
        "is chance.",
        PanelQuery(f"{worst}{RUN}", "rank"),
        unit="none",
        width=6,
    )


def _deviation_panel(name: str) -> Any:
    signal = SIGNALS[name]
    mean, deviation = signal.deviation_metrics
    options = PanelOptions(
        label_of(signal.name),
        f"Mean and standard deviation over ranks. {signal.help} Metric: {mean}",
        unit=unit_of(signal),
        width=8,
    )
    queries = [PanelQuery(f"{mean}{RUN}", "mean"), PanelQuery(f"{deviation}{RUN}", "deviation")]
    return time_series_panel(options, queries)


def _difference_panel(name: str) -> Any:
    signal = SIGNALS[name]
    assert signal.combine_rule is CombineRule.SAME
    lowest, highest, _ = signal.rank_metrics
    return lines_panel(
        label_of(signal.name),
        "Highest rank's value minus the lowest; anything but 0 is a fault.",
        PanelQuery(f"{highest}{RUN} - {lowest}{RUN}", "difference"),
        unit=unit_of(signal),
    )


def _in_order(expr: str) -> str:
    """The query with ranks padded by zeros, since Prometheus sorts series by the text of labels."""
    for digits in range(1, _RANK_DIGITS):
        expr = f'label_replace({expr}, "rank", "0$1", "rank", "(.{{{digits}}})")'
    return expr
