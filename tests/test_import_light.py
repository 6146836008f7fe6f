"""Importing sentinel costs a trainer next to nothing."""

import subprocess
import sys

LISTED = """
import sys, time
before, began = set(sys.modules), time.process_time()
import sentinel
spent = time.process_time() - began
sentinel.monitor, sentinel.log, sentinel.mark, sentinel.phase, sentinel.SettingsError
print(spent, *sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""

HEAVY = {"asyncio", "email", "http", "logging", "multiprocessing", "socket", "sqlite3", "ssl"}
"""Parts of the standard library that cost more to load than all of the hook."""


def imported():
    """Seconds of processor time that `import sentinel` took, and the modules of a whole run."""
    done = subprocess.check_output([sys.executable, "-c", LISTED], timeout=60, text=True)
    spent, *names = done.split()
    return float(spent), set(names)


def test_only_the_standard_library_is_loaded_and_its_heavy_parts_are_not():
    _, names = imported()

    assert names - set(sys.stdlib_module_names) == {"sentinel"}
    assert names & HEAVY == set()


def test_it_takes_less_than_fifty_milliseconds_of_cpu():
    """The best of five: on a machine whose caches others use, processor time grows as well."""
    assert min(imported()[0] for _ in range(5)) < 0.05
