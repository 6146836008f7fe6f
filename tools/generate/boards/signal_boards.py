"""The boards RL and Training: the signals of the catalogue by group."""

from __future__ import annotations

from collections.abc import Sequence

from tools.generate.boards.shared_panels import (
    RUN,
    lines_panel,
    run_annotations,
    run_board_options,
    signal_rows,
)
from tools.generate.detector_docs import DetectorDoc
from tools.generate.panels import PanelQuery, collapsible_row, dashboard_json

RL_GROUPS = (
    "KL divergence",
    "Reward and preference",
    "Objective",
    "Completions and samples",
    "Age of the samples",
    "Tools and environments",
)
TRAINING_GROUPS = (
    "Loss",
    "Optimiser",
    "Speed",
    "Progress",
    "Mixture of experts",
    "Curvature and distance",
)


def rl_board(docs: Sequence[DetectorDoc]) -> str:
    """JSON of the board of the policy: KL, reward, entropy, lengths, clipping, staleness."""
    options = run_board_options(
        "RL",
        "sentinel-rl",
        "Signals of a policy that is trained by reinforcement learning or on preferences.",
    )
    components = lines_panel(
        "Reward by function",
        "Mean reward of each reward function of the run.",
        PanelQuery('sentinel_logged_value{run="$run",key=~"rewards/.+/mean"}', "{{key}}"),
        width=12,
    )
    settings = lines_panel(
        "Settings",
        "Settings of the run whose names speak of KL, clipping, reward or sampling.",
        PanelQuery(
            'sentinel_run_setting{run="$run",name=~".*(kl|beta|clip|epsilon|reward|temperature).*"}',
            "{{name}}",
        ),
        width=12,
    )
    rows = [
        *signal_rows(RL_GROUPS, docs),
        collapsible_row("Reward functions and settings", [components, settings]),
    ]
    return dashboard_json(options, rows, run_annotations())


def training_board(docs: Sequence[DetectorDoc]) -> str:
    """JSON of the board of signals that every training has: loss, optimiser, speed, progress."""
    options = run_board_options(
        "Training", "sentinel-training", "Loss, optimiser, speed and progress of a run."
    )
    values = lines_panel(
        "Other logged values",
        "Values that the run logs under keys that are not in the catalogue.",
        PanelQuery(f"sentinel_logged_value{RUN}", "{{key}}"),
        width=24,
    )
    rows = [*signal_rows(TRAINING_GROUPS, docs), collapsible_row("Other values", [values])]
    return dashboard_json(options, rows, run_annotations())
