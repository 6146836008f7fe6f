"""Sockets of the cluster beside the other open files of the agent."""

import fcntl
import socket
import subprocess
import sys

from sentinel.cluster.sockets import count_accepted_connections, shutdown_connections

TRY_LOCK_CODE = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(3)
"""
LOCKED = 3


def test_locks_of_files_are_kept_while_connections_are_shut_down_and_counted(tmp_path):
    """POSIX releases all locks of a process on a file when it closes any descriptor of the file."""
    path = tmp_path / "database"
    path.touch()
    with path.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        shutdown_connections(1)
        count_accepted_connections(1)
        done = subprocess.run([sys.executable, "-c", TRY_LOCK_CODE, str(path)], check=False)

    assert done.returncode == LOCKED


def test_the_connections_of_peers_to_a_port_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert count_accepted_connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            assert count_accepted_connections(port) == 1
