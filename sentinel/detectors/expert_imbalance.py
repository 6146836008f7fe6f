"""Expert imbalance: the router sends most tokens to few experts, or drops them.

Formula
    Finding  = the level of a signal is past its bound, or has left its usual one, as in
               `sentinel.stats.level_guard`:
               load of the busiest expert over an even load: by `uneven` times, and over twice it;
               its violation, which is that less 1: by `uneven` times, and over 1;
               share of dropped tokens and of dead experts: by `lost`, or over half of all;
               entropy of the router: to half of its level;
               router z-loss: by ten times; load-balancing loss: by half
    info     = the two losses and the entropy alone

Units
    `uneven`: plain factor. `lost`: fraction of the tokens or of the experts.

Source
    Fedus et al. 2021 (arXiv:2101.03961) on load balancing and dropped tokens; Zoph et al. 2022
    (arXiv:2202.08906) on the z-loss; Wang et al. 2024 (arXiv:2408.15664) on the violation of the
    load, which is the load of the busiest expert minus 1. Where it is logged by layer, the worst
    layer counts.

Defaults
    `uneven` 1.5 is half as much more time in the step of an expert-parallel run, `lost` 0.1 a tenth
    of the model. In synthetic logs with the keys of OLMo and verl, 24 a size, a load that rises
    from 1.4 to 3, 6 and 21 times the even one is found in at least 70, 95 and 100 %, and so are
    dropped tokens and dead experts of 20, 40 and 80 %; no healthy log has a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.detectors._guarded_signals import GuardedSignals
from sentinel.model.finding import Severity
from sentinel.model.record import Record
from sentinel.stats.level_guard import LevelGuard

LOADS = ("expert_load_imbalance", "expert_load_violation")


@dataclass
class ExpertImbalance(GuardedSignals):
    """Evaluates load, dropped tokens, dead experts and losses of the router."""

    uneven: float = 1.5
    lost: float = 0.1

    steps_with = frozenset({
        *LOADS, *(f"{load}/" for load in LOADS), "dropped_token_fraction", "dead_expert_fraction",
        "router_entropy", "router_z_loss", "load_balancing_loss",
    })  # fmt: skip
    reads = steps_with
    severities: ClassVar[dict[str, Severity]] = dict.fromkeys(
        ("router_entropy", "router_z_loss", "load_balancing_loss"), Severity.INFO
    )
    signal = "expert_load_imbalance"
    remedy = (
        "Raise the weight of the load-balancing loss, or the rate at which the router's bias is "
        "updated. Check that the router computes in 32 bits, and lower {learning rate} if its "
        "logits grow. Resume from the checkpoint before the onset if experts are dead."
    )

    def __post_init__(self) -> None:
        self._guards = [
            ("expert_load_imbalance", LevelGuard(1, self.uneven, 2.0, least=1.0)),
            ("expert_load_violation", LevelGuard(1, self.uneven, 1.0, least=0.5)),
            ("dropped_token_fraction", LevelGuard(1, self.lost, self.lost, 0.5)),
            ("dead_expert_fraction", LevelGuard(1, self.lost, self.lost, 0.5)),
            ("router_entropy", LevelGuard(-1, 2.0, least=1e-3)),
            ("router_z_loss", LevelGuard(1, 10.0, least=1e-12)),
            ("load_balancing_loss", LevelGuard(1, 1.5, least=1e-12)),
        ]

    def guarded_values(self, record: Record) -> dict[str, float]:
        """The values of the record, with the load of the worst layer."""
        values = dict(record.values)
        for load in LOADS:
            by_layer = [x for name, x in values.items() if name.startswith(f"{load}/")]
            if by_layer:
                values[load] = max(by_layer)
        return values
