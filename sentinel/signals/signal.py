"""One entry of the catalogue of signals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Better = Literal["", "lower", "higher"]


class CombineRule(Enum):
    """How the values of the ranks are combined into the value of the run."""

    MEAN = "mean"
    """Mean, weighted by the `weight` that each rank logged, else 1."""
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    NORM = "norm"
    """Root of the sum of squares: norms of separate parts of one vector."""
    SAME = "same"
    """Every rank should have the same value; that of the lowest rank is used."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One measured quantity.

    `unit` is a Prometheus base unit, or empty for plain numbers. `family` names the Prometheus
    family without the prefix `sentinel_`; empty means `name`. `aliases` are other names of the same
    quantity, in order of preference, in lower case and without a leading `train/`. `entity` is what
    is measured if that is not a rank: `gpu`, `disk` or `host`. `better` is which of two values is
    the better one, if that does not depend on the run.
    """

    name: str
    unit: str
    combine_rule: CombineRule
    help: str
    aliases: tuple[str, ...] = ()
    family: str = ""
    entity: str = ""
    better: Better = ""

    @property
    def metric(self) -> str:
        """Prometheus family name; the unit is last and occurs once."""
        return f"sentinel_{self._stem}{self._suffix}"

    @property
    def rank_metrics(self) -> tuple[str, str, str]:
        """Families of the lowest and the highest rank's value, and the number of the worst rank.

        >>> Signal("kl_ref", "nats", CombineRule.MEAN, "", family="policy_kl").rank_metrics[1:]
        ('sentinel_policy_kl_rank_max_nats', 'sentinel_policy_kl_worst_rank')
        """
        lowest, highest = (f"sentinel_{self._stem}_rank_{x}{self._suffix}" for x in ("min", "max"))
        return lowest, highest, f"sentinel_{self._stem}_worst_rank"

    @property
    def deviation_metrics(self) -> tuple[str, str]:
        """Families of the unweighted mean of the ranks' values and their standard deviation.

        >>> Signal("kl_ref", "nats", CombineRule.MEAN, "", family="policy_kl").deviation_metrics[1]
        'sentinel_policy_kl_rank_std_nats'
        """
        mean, std = (f"sentinel_{self._stem}_rank_{x}{self._suffix}" for x in ("mean", "std"))
        return mean, std

    @property
    def _stem(self) -> str:
        stem = self.family or self.name
        return stem.removesuffix(f"_{self.unit}") if self.unit else stem

    @property
    def _suffix(self) -> str:
        return f"_{self.unit}" if self.unit else ""
