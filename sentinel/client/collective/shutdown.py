"""Departed: on rank 0, the end of a collective: who was lost, who left, and who never came.

The rings in the others' names must not look like ranks that hang. So each is closed: with how its
rank ended, where that said so; as died, where its process is gone without a word; as finished for
us where it said that its own node's agent speaks for it from now on; and as unknown where nothing
was said. People are told why.
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
"""How long ranks have to answer that they are there."""


class CollectiveShutdown:
    """Hears out the others. `tell` is told `why` it is over; None where rank 0 just ends."""

    def __init__(
        self,
        gather_group: GatherGroup,
        replica_rings: ReplicaRings,
        report_reason: Callable[[str], None],
        error: Exception | None,
    ) -> None:
        self.gather_group, self.replica_rings, self._report = (
            gather_group,
            replica_rings,
            report_reason,
        )
        self._error = error
        self._is_group_broken = isinstance(error, GatherGroupError)
        self._deadline, self._poll_count = monotonic() + ANSWER_TIMEOUT_SECONDS, 0
        self._lost_ranks: list[int] = []
        self._closed_ranks: set[int] = set()
        """Ranks whose last words are put away."""
        self._lost_ranks = gather_group.lost_ranks(self._unanswered_ranks())
        gather_group.dismiss_peers()
        self._reported_reason = ""
        if error is not None or self._lost_ranks:
            self._report_reason(final=False)

    def poll(self) -> bool:
        """Whether all have answered, or had the time to; then everything is closed."""
        self._poll_count += 1
        over = monotonic() > self._deadline and self._poll_count >= MIN_POLLS
        if not over and self._unanswered_ranks():
            # Those who go on are soon told of by their own nodes: what they left comes before.
            self._store_final_chunks(self.gather_group.final_chunks())
            return False
        self.close()
        return True

    def close(self) -> None:
        """No more is heard of the others."""
        if self._error is not None:
            self._report_reason(final=True)
        words = self.gather_group.final_chunks()
        self._store_final_chunks(words)
        told = {COLLECTIVE_KEY: f"off: {self._reported_reason}"} if self._reported_reason else {}
        for rank in [*self.replica_rings.by_rank]:
            self.replica_rings.close(
                rank, "died" if rank in self._lost_ranks else UNKNOWN_OUTCOME, told
            )

    def _store_final_chunks(self, final_chunks: dict[int, Chunk]) -> None:
        """Put last words away that were not yet, and close the rings that they go to."""
        news = sorted(final_chunks.keys() - self._closed_ranks)
        self._closed_ranks.update(news)
        self.replica_rings.enqueue((rank, final_chunks[rank]) for rank in news)
        self.replica_rings.write_queued()
        elsewhere = {COLLECTIVE_KEY: f"off: {self._reported_reason or 'rank 0 ended'}"}
        for rank in news:
            goes_on = final_chunks[rank].outcome_index == STILL_RUNNING
            self.replica_rings.close(
                rank, _outcome(final_chunks[rank]), elsewhere if goes_on else {}
            )

    def _unanswered_ranks(self) -> list[int]:
        words = self.gather_group.final_chunks()
        others = range(1, self.gather_group.world_size)
        return [rank for rank in others if rank not in words and rank not in self._lost_ranks]

    def _report_reason(self, *, final: bool) -> None:
        reason = self._reason(final=final)
        if reason != self._reported_reason:
            self._reported_reason = reason
            self._report(reason)

    def _reason(self, *, final: bool) -> str:
        words = self.gather_group.final_chunks()
        lost = [rank for rank in self._lost_ranks if rank not in words]
        ended = [rank for rank, word in words.items() if word.outcome_index]
        if lost:
            return f"{format_ranks(lost)} lost"
        if ended:
            return f"{format_ranks(ended)} ended"
        absent = self._unanswered_ranks() if final and not self._is_group_broken else []
        return f"{self._error}: {format_ranks(absent)} did not come" if absent else str(self._error)


def _outcome(final_chunk: Chunk) -> str:
    """How a rank ended by its last word; for us, one that goes on without us as well."""
    return (
        OUTCOMES[final_chunk.outcome_index]
        if 0 < final_chunk.outcome_index < len(OUTCOMES)
        else "finished"
    )
