"""Which files of tests run at the same time, so that few processes compete for the processors."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

PROCESS_FOLDERS = tuple(
    f"tests/{name}/" for name in ("nodes", "stack", "chaos", "integration", "browser")
)
"""Tests of these folders start ranks, agents, servers and browsers, which mostly wait."""
FRAMEWORKS = "tests/frameworks/"
"""One worker runs all tests of this folder: importing the frameworks takes 20 seconds."""
MAX_BESIDE_OTHERS = 2
"""Workers that run such files while others are left, of which each occupies a processor."""


class BoundedScheduling(LoadFileScheduling):
    """At least one worker runs the files that start no processes, until none is left.

    xdist would start with the files of most tests, and end with those that mostly wait.
    """

    def _split_scope(self, nodeid: str) -> str:
        """The tests that one worker runs together: those of a file, or of all frameworks."""
        return FRAMEWORKS if nodeid.startswith(FRAMEWORKS) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        starting = [file for file in self.workqueue if file.startswith(PROCESS_FOLDERS)]
        others = [file for file in self.workqueue if not file.startswith(PROCESS_FOLDERS)]
        running = sum(self._starts_processes(each) for each in self.nodes if each is not node)
        is_full = bool(others) and running >= MAX_BESIDE_OTHERS
        files = others if is_full else starting or others
        self.workqueue.move_to_end(files[0], last=False)
        super()._assign_work_unit(node)

    def _starts_processes(self, node: WorkerController) -> bool:
        """Whether that worker still has tests of files that start processes."""
        assigned = self.assigned_work[node].items()
        return any(
            file.startswith(PROCESS_FOLDERS) and not all(tests.values()) for file, tests in assigned
        )
