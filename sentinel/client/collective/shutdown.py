"""The end of the collective on rank 0: collects final chunks and closes the replica rings.

An open replica ring would look like a rank that hangs, so each one is closed: with the outcome that
its rank sent; as "died" if its process is gone; as "finished" if the agent of its own node takes
over; and as unknown if the rank sent nothing. The reason is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from sentinel.client.collective.chunk import STILL_RUNNING, Chunk
from sentinel.client.collective.gather_group import GatherGroup, GatherGroupError
from sentinel.client.collective.readiness import format_ranks
from sentinel.client.collective.replica_rings import ReplicaRings
from sentinel.model.record import COLLECTIVE_KEY, UNKNOWN_OUTCOME
from sentinel.transport.ring_layout import OUTCOMES

ANSWER_TIMEOUT_SECONDS, MIN_POLLS = 5.0, 5
"""Ranks have this time, and rank 0 polls at least this often, for their final chunks."""


class CollectiveShutdown:
    """Collects final chunks. `error` is why the collective ends; None if rank 0 ends normally.

    The reason is passed to `report_reason`, if there is one.
    """

    def __init__(
        self,
        gather_group: GatherGroup,
        replica_rings: ReplicaRings,
        report_reason: Callable[[str], None],
        error: Exception | None,
    ) -> None:
        self.gather_group, self.replica_rings = gather_group, replica_rings
        self._report = report_reason
        self._error = error
        self._is_group_broken = isinstance(error, GatherGroupError)
        self._deadline, self._poll_count = monotonic() + ANSWER_TIMEOUT_SECONDS, 0
        self._lost_ranks: list[int] = []
        self._closed_ranks: set[int] = set()
        """Ranks whose final chunk is written."""
        self._lost_ranks = gather_group.lost_ranks(self._unanswered_ranks())
        gather_group.dismiss_peers()
        self._reported_reason = ""
        if error is not None or self._lost_ranks:
            self._report_reason(final=False)

    def poll(self) -> bool:
        """Whether all ranks have answered or the time is over; then all rings are closed."""
        self._poll_count += 1
        is_over = monotonic() > self._deadline and self._poll_count >= MIN_POLLS
        if not is_over and self._unanswered_ranks():
            # Other nodes will report their ranks soon; write their final chunks before that.
            self._store_final_chunks(self.gather_group.final_chunks())
            return False
        self.close()
        return True

    def close(self) -> None:
        """Close all replica rings."""
        if self._error is not None:
            self._report_reason(final=True)
        self._store_final_chunks(self.gather_group.final_chunks())
        reason = self._reported_reason
        attributes = {COLLECTIVE_KEY: f"off: {reason}"} if reason else {}
        for rank in [*self.replica_rings.by_rank]:
            self.replica_rings.close(
                rank, "died" if rank in self._lost_ranks else UNKNOWN_OUTCOME, attributes
            )

    def _store_final_chunks(self, final_chunks: dict[int, Chunk]) -> None:
        """Write final chunks that are new, and close their rings."""
        new_ranks = sorted(final_chunks.keys() - self._closed_ranks)
        self._closed_ranks.update(new_ranks)
        self.replica_rings.enqueue((rank, final_chunks[rank]) for rank in new_ranks)
        self.replica_rings.write_queued()
        continues_alone = {COLLECTIVE_KEY: f"off: {self._reported_reason or 'rank 0 ended'}"}
        for rank in new_ranks:
            continues = final_chunks[rank].outcome_index == STILL_RUNNING
            self.replica_rings.close(
                rank, _outcome(final_chunks[rank]), continues_alone if continues else {}
            )

    def _unanswered_ranks(self) -> list[int]:
        answered = self.gather_group.final_chunks()
        others = range(1, self.gather_group.world_size)
        return [rank for rank in others if rank not in answered and rank not in self._lost_ranks]

    def _report_reason(self, *, final: bool) -> None:
        reason = self._reason(final=final)
        if reason != self._reported_reason:
            self._reported_reason = reason
            self._report(reason)

    def _reason(self, *, final: bool) -> str:
        answered = self.gather_group.final_chunks()
        lost = [rank for rank in self._lost_ranks if rank not in answered]
        ended = [rank for rank, final in answered.items() if final.outcome_index]
        if lost:
            return f"{format_ranks(lost)} lost"
        if ended:
            return f"{format_ranks(ended)} ended"
        absent = self._unanswered_ranks() if final and not self._is_group_broken else []
        if absent:
            return f"{self._error}: {format_ranks(absent)} did not answer"
        return str(self._error)


def _outcome(final_chunk: Chunk) -> str:
    """The outcome in a final chunk; "finished" for a rank that continues with its own agent."""
    return (
        OUTCOMES[final_chunk.outcome_index]
        if 0 < final_chunk.outcome_index < len(OUTCOMES)
        else "finished"
    )
