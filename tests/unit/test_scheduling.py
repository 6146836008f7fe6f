"""Files that start processes leave a worker to the others, and every test runs once.

The tests of frameworks run in one worker.
"""

import random
from types import SimpleNamespace

import pytest
from support.scheduling import FRAMEWORKS, PROCESS_FOLDERS, BoundedScheduling

FILES = [f"{folder}test_{number}.py" for folder in PROCESS_FOLDERS for number in range(8)]
OTHERS = [f"{folder}test_{n}.py" for folder in (FRAMEWORKS, "tests/unit/") for n in range(4)]


class Worker:
    """Executes the tests that it is assigned in order, but the last one only at its shutdown."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.waiting, self.shutting_down = [], False

    def send_runtest_some(self, indices):
        self.waiting += indices

    def shutdown(self):
        self.shutting_down = True

    def is_ready(self):
        return len(self.waiting) > (0 if self.shutting_down else 1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("others", [OTHERS, []])
def test_two_files_that_start_processes_run_beside_others(seed, others):
    rng = random.Random(seed)
    tests = [f"{file}::test_{n}" for file in [*FILES, *others] for n in range(rng.randint(1, 6))]
    option = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=option, getvalue=lambda _: ["popen"] * 3)
    scheduling = BoundedScheduling(config)
    workers = [Worker(number) for number in range(3)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    done, framework_workers, most_beside_others, most = [], set(), 0, 0
    while ready := [worker for worker in workers if worker.is_ready()]:
        running = [tests[worker.waiting[0]] for worker in workers if worker.waiting]
        count = sum(test.startswith(PROCESS_FOLDERS) for test in running)
        most = max(most, count)
        if any(not file.startswith(PROCESS_FOLDERS) for file in scheduling.workqueue):
            most_beside_others = max(most_beside_others, count)
        worker = rng.choice(ready)
        index = worker.waiting.pop(0)
        done.append(tests[index])
        if tests[index].startswith(FRAMEWORKS):
            framework_workers.add(worker)
        scheduling.mark_test_complete(worker, index)

    assert sorted(done) == sorted(tests)
    assert most_beside_others == (2 if others else 0)
    assert most == 3
    assert len(framework_workers) == (1 if others else 0)
