"""Identity: the ranks of one node know each other without a word."""

import json
import os
import subprocess
import sys


def test_the_ranks_of_one_node_agree_on_the_run(script, tmp_path):
    """Two children of one parent, told apart only by what a launcher sets."""
    line = script("""
import json
from sentinel.wire.identity import identify
who = identify("My run")
print(json.dumps([who.run, who.rank, who.local_rank, who.world_size, who.local_world_size]))
""")
    found = []
    for rank in range(2):
        environ = {
            **os.environ,
            "RANK": str(rank + 2),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_PORT": "1234",
        }
        done = subprocess.run(line, env=environ, timeout=240, check=True, capture_output=True)
        found.append(json.loads(done.stdout))

    assert found[0][0] == found[1][0]
    assert found[0][0].startswith("my-run-")
    assert [each[1:] for each in found] == [[2, 0, 4, 2], [3, 1, 4, 2]]


def test_a_run_started_elsewhere_has_another_id():
    line = "from sentinel.wire.identity import identify; print(identify('r').run)"
    ids = {subprocess.check_output([sys.executable, "-c", line], timeout=240) for _ in range(2)}

    assert len(ids) == 2
