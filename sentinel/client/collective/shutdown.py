"""Departed: on rank 0, the end of a collective: who was lost, who left, and who never came.

The rings in the others' names must not look like ranks that hang. So each is closed: with how its
rank ended, where that said so; as died, where its process is gone without a word; as finished for
us where it said that its own node's agent speaks for it from now on; and as unknown where nothing
was said. People are told why.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from sentinel.client.collective.chunk import GOES_ON, Chunk
from sentinel.client.collective.gather_group import Broken, Gathering
from sentinel.client.collective.readiness import named
from sentinel.client.collective.replica_rings import Mirrors
from sentinel.transport.ring_layout import COLLECTIVE, OUTCOMES, UNKNOWN

ANSWER_SECONDS, FEWEST_LOOKS = 5.0, 5
"""How long ranks have to answer that they are there."""


class Departed:
    """Hears out the others. `tell` is told `why` it is over; None where rank 0 just ends."""

    def __init__(
        self,
        gathering: Gathering,
        mirrors: Mirrors,
        tell: Callable[[str], None],
        why: Exception | None,
    ) -> None:
        self.gathering, self.mirrors, self._tell = gathering, mirrors, tell
        self._why = why
        self._broken = isinstance(why, Broken)
        self._until, self._looks = monotonic() + ANSWER_SECONDS, 0
        self._lost: list[int] = []
        self._closed: set[int] = set()
        """Ranks whose last words are put away."""
        self._lost = gathering.lost(self._unheard())
        gathering.dismiss()
        self._told = ""
        if why is not None or self._lost:
            self._tell_reason(final=False)

    def heard(self) -> bool:
        """Whether all have answered, or had the time to; then everything is closed."""
        self._looks += 1
        over = monotonic() > self._until and self._looks >= FEWEST_LOOKS
        if not over and self._unheard():
            # Those who go on are soon told of by their own nodes: what they left comes before.
            self._let_go(self.gathering.last_words())
            return False
        self.close()
        return True

    def close(self) -> None:
        """No more is heard of the others."""
        if self._why is not None:
            self._tell_reason(final=True)
        words = self.gathering.last_words()
        self._let_go(words)
        told = {COLLECTIVE: f"off: {self._told}"} if self._told else {}
        for rank in [*self.mirrors.rings]:
            self.mirrors.close(rank, "died" if rank in self._lost else UNKNOWN, told)

    def _let_go(self, words: dict[int, Chunk]) -> None:
        """Put last words away that were not yet, and close the rings that they go to."""
        news = sorted(words.keys() - self._closed)
        self._closed.update(news)
        self.mirrors.take((rank, words[rank]) for rank in news)
        self.mirrors.put_away()
        elsewhere = {COLLECTIVE: f"off: {self._told or 'rank 0 ended'}"}
        for rank in news:
            goes_on = words[rank].ending == GOES_ON
            self.mirrors.close(rank, _ending(words[rank]), elsewhere if goes_on else {})

    def _unheard(self) -> list[int]:
        words = self.gathering.last_words()
        others = range(1, self.gathering.world)
        return [rank for rank in others if rank not in words and rank not in self._lost]

    def _tell_reason(self, *, final: bool) -> None:
        reason = self._reason(final=final)
        if reason != self._told:
            self._told = reason
            self._tell(reason)

    def _reason(self, *, final: bool) -> str:
        words = self.gathering.last_words()
        lost = [rank for rank in self._lost if rank not in words]
        ended = [rank for rank, word in words.items() if word.ending]
        if lost:
            return f"{named(lost)} lost"
        if ended:
            return f"{named(ended)} ended"
        absent = self._unheard() if final and not self._broken else []
        return f"{self._why}: {named(absent)} did not come" if absent else str(self._why)


def _ending(word: Chunk) -> str:
    """How a rank ended by its last word; for us, one that goes on without us as well."""
    return OUTCOMES[word.ending] if 0 < word.ending < len(OUTCOMES) else "finished"
