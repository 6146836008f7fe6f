"""The runs that coding agents ask about; the error about an unknown name states the nearest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.mcp.fence import fence
from sentinel.model.nearest_name import nearest_name
from sentinel.store.run_names import similar_ids
from sentinel.web.home.home_site import RunSource
from sentinel.web.home.run_list import MAX_ROWS, RunQuery
from sentinel.web.run_routes import RunView


class AnswerError(Exception):
    """A question without an answer; the message is for the client, with names of runs fenced."""


@dataclass(frozen=True)
class RunAccess:
    """The runs of `source`, for calls in any thread; each may wait for a file server."""

    source: RunSource

    def rows(self, words: str = "", limit: int = MAX_ROWS) -> dict[str, Any]:
        """The newest runs that these words select, see `query_runs`."""
        return self.source.list_runs(RunQuery(filter=words, limit=limit))

    def view(self, run: str) -> RunView:
        """The view of the run of that id, or of the only id that begins so. Raises AnswerError."""
        found = self.source.view(run)
        if found is not None:
            return found
        words = " ".join(f"run:{word}" for word in run.split())
        selected = [str(row["run"]) for row in self.rows(words)["runs"]] if words else []
        beginning = [each for each in selected if each.startswith(run)]
        found = self.source.view(beginning[0]) if len(beginning) == 1 else None
        if found is None:
            # The newest first.
            known = [str(row["run"]) for row in self.rows()["runs"]]
            similar = _similar(run, beginning or known)
            raise AnswerError(f"There is no run {fence(run, 60)}.{similar}")
        return found


def unknown_name(kind: str, name: str, names: Collection[str], near: str = "") -> AnswerError:
    """The error about a name that is not known, with `near` if it is one of the names.

    Else with the one that is spelled most alike, if any is.
    """
    meant = near if near in names else nearest_name(name, names, 0.4)
    hint = f" Did you mean {fence(meant)}?" if meant else ""
    return AnswerError(f"The run has no {kind} {fence(name, 60)}.{hint}")


def _similar(run: str, known: Sequence[str]) -> str:
    near = " or ".join(fence(each) for each in similar_ids(run, known))
    return f" Did you mean {near}?" if near else " list_runs shows the runs."
