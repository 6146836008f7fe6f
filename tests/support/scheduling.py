"""Which files of tests run at the same time, so that few processes compete for the processors."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

PROCESS_FOLDERS = tuple(
    f"tests/{name}/" for name in ("nodes", "stack", "chaos", "integration", "browser")
)
"""Tests of these folders start ranks, agents, servers and browsers, which mostly wait."""
MAX_WORKERS_AT_END = 2
"""Workers that run such files when no others are left."""


class BoundedScheduling(LoadFileScheduling):
    """One worker runs the files that start processes, in their order; the others run the rest.

    xdist would start with the files of most tests, and end with many processes at once.
    """

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not node.shutting_down and self._next_file(node) is None:
            node.shutdown()
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if file := self._next_file(node):
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    def _next_file(self, node: WorkerController) -> str | None:
        """The next file for that worker; None if others run as many as may run at once."""
        starting = [file for file in self.workqueue if file.startswith(PROCESS_FOLDERS)]
        others = [file for file in self.workqueue if not file.startswith(PROCESS_FOLDERS)]
        running = sum(self._starts_processes(each) for each in self.nodes if each is not node)
        limit = 1 if others else MAX_WORKERS_AT_END
        return next(iter(starting if running < limit and starting else others), None)

    def _starts_processes(self, node: WorkerController) -> bool:
        """Whether that worker still has tests of files that start processes."""
        assigned = self.assigned_work[node].items()
        return any(
            file.startswith(PROCESS_FOLDERS) and not all(tests.values()) for file, tests in assigned
        )
