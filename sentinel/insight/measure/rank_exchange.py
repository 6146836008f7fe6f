"""Numbers that the ranks of a job exchange while they compute a surface together.

They go through the store of the process group, not through a collective: a rank that is lost can be
named after a timeout, and the training's communicators are not used. Rank 0 of the group collects
what each rank reports in a round, and publishes it to all.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

from sentinel.client.process_group import default_store
from sentinel.insight.measure.surface_error import SurfaceError

TIMEOUT_SECONDS = 120.0
"""How long a rank is waited for, beside ten times what this rank needed itself."""
_SLICE_SECONDS = 1.0
"""Ctrl-C is noticed within this time."""
_FAILED_SECONDS = 10.0
"""How long ranks are waited for after an error."""
_MAX_REASON_CHARS = 300

_calls = count()


class RankExchange:
    """The ranks of a process group; one rank alone needs no group.

    Every rank makes the same calls in the same order.
    """

    def __init__(self, group: Any = None, timeout: float | None = None) -> None:
        self.group = group
        self.rank, self.size, self.ranks = 0, 1, [0]
        self._timeout = TIMEOUT_SECONDS if timeout is None else timeout
        self._round, self._is_failed = 0, False
        self._last = time.monotonic()
        if group is None:
            return
        import torch.distributed as dist  # noqa: PLC0415 - slow to import

        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise SurfaceError("This rank is no member of `process_group`: call it on its members.")
        self.ranks = dist.get_process_group_ranks(group)
        self._store = default_store(dist)
        members = ",".join(map(str, self.ranks))
        self._prefix = f"sentinel/surface/{members}/{next(_calls)}"

    def gather(self, value: Any) -> list[Any]:
        """What each rank passed in this round, by rank. Values are JSON; NaN is allowed.

        Raises SurfaceError naming the rank that did not report in time, or that failed.
        """
        if self.size == 1:
            return [value]
        patience = self._timeout + 10 * (time.monotonic() - self._last)
        try:
            report = self._exchange({"value": value}, patience)
        finally:
            self._last = time.monotonic()
        if "error" in report:
            self._is_failed = True
            raise SurfaceError(report["error"])
        values: list[Any] = report["values"]
        return values

    def require_equal(self, **arguments: Any) -> None:
        """Raise SurfaceError on every rank if an argument differs; the text names it."""
        everyone = self.gather({name: repr(value) for name, value in arguments.items()})
        differing = [
            f"`{name}`" for name in arguments if len({each.get(name) for each in everyone}) > 1
        ]
        if differing:
            raise SurfaceError(
                f"The ranks have different values of {', '.join(differing)}: call the function on "
                "every rank with the same arguments."
            )

    def fail(self, error: BaseException, *, is_collective: bool = False) -> str | None:
        """Report to the other ranks that this one failed.

        With `is_collective` the error may be that of a collective that another rank left: returned
        is then which rank it was, if that is known.
        """
        if self.size == 1 or self._is_failed:
            return None
        self._is_failed = True
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = {"error": reason[:_MAX_REASON_CHARS]}
        if is_collective:
            with suppress(Exception):
                return str(self._exchange(message, _FAILED_SECONDS).get("error") or "") or None
            return None
        with suppress(Exception):
            if self.rank == 0:
                text = self._failure(0, message["error"])
                self._store.set(f"{self._key}/all", json.dumps({"error": text}))
            else:
                self._store.set(f"{self._key}/{self.rank}", json.dumps(message))
        return None

    @property
    def _key(self) -> str:
        return f"{self._prefix}/{self._round}"

    def _exchange(self, message: dict[str, Any], patience: float) -> dict[str, Any]:
        report: dict[str, Any]
        if self.rank == 0:
            report = self._collect(message, patience)
            self._store.set(f"{self._key}/all", json.dumps(report))
            if self._round:
                # Every rank has read it: they have all reported since.
                with suppress(Exception):
                    self._store.delete_key(f"{self._prefix}/{self._round - 1}/all")
            self._round += 1
            return report
        key = self._key
        own = f"{key}/{self.rank}"
        try:
            self._store.set(own, json.dumps(message))
            self._round += 1
            answer = self._wait(f"{key}/all", 2 * patience)
        except Exception as error:
            raise SurfaceError(self._lost([0], patience)) from error
        if answer is None:
            return {"error": self._lost([0], 2 * patience)}
        with suppress(Exception):
            self._store.delete_key(own)
        report = json.loads(answer)
        return report

    def _collect(self, message: dict[str, Any], patience: float) -> dict[str, Any]:
        """Every rank's value, or the error that all ranks raise."""
        deadline = time.monotonic() + patience
        messages, lost = [message], []
        for rank in range(1, self.size):
            answer = self._wait(f"{self._key}/{rank}", max(deadline - time.monotonic(), 0.01))
            if answer is None:
                lost.append(rank)
                messages.append({})
            else:
                messages.append(json.loads(answer))
        if lost:
            return {"error": self._lost(lost, patience)}
        failed = [rank for rank, each in enumerate(messages) if "error" in each]
        if failed:
            return {"error": self._failure(failed[0], messages[failed[0]]["error"])}
        return {"values": [each["value"] for each in messages]}

    def _wait(self, key: str, seconds: float) -> str | None:
        """The value of a key, None if it does not appear in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._store.wait([key], timedelta(seconds=min(left, _SLICE_SECONDS)))
            except RuntimeError as error:
                if "timeout" not in str(error).lower():
                    raise
                continue
            return bytes(self._store.get(key)).decode()
        return None

    def _lost(self, ranks: list[int], patience: float) -> str:
        names = " and ".join(str(self.ranks[rank]) for rank in ranks)
        who = f"Rank {names} has" if len(ranks) == 1 else f"Ranks {names} have"
        return (
            f"{who} not answered for {patience:.0f} s: the process ended, or it did not call the "
            "same function. Every rank of the group must call it; look at the log of that rank. "
            "`process_group=False` measures on one rank alone, and `timeout` sets how long to wait."
        )

    def _failure(self, rank: int, reason: str) -> str:
        return (
            f"Rank {self.ranks[rank]} failed: {reason} The measurement needs every rank: look at "
            "the log of that rank."
        )
