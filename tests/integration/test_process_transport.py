"""Programs that receive notifications: no shell, bounded time and output, no secret in reach."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from support.rank_processes import until

from sentinel.model.delivery import ProcessInput
from sentinel.notify.transports.process import MAX_OUTPUT_BYTES
from sentinel.notify.transports.send import send

TIMEOUT_SECONDS = 60.0


def run(code, *arguments, stdin=b"", **settings):
    return send(ProcessInput((sys.executable, "-c", code, *arguments), stdin, **settings))


def test_a_program_reads_its_input_and_its_status_and_output_are_the_response():
    code = "import sys; print(sys.stdin.read().upper()); sys.exit(3)"
    response = run(code, stdin=b'{"a": 1}')

    assert (response.status, response.body, response.error) == (3, '{"A": 1}\n', "")
    assert f"{response}" == "exit status 3"


def test_arguments_are_passed_without_a_shell(tmp_path):
    argument = f"; touch {tmp_path}/made $(id) `id` *"
    response = run("import sys, json; print(json.dumps(sys.argv[1:]))", argument)

    assert json.loads(response.body) == [argument]
    assert not (tmp_path / "made").exists()


def test_a_program_that_does_not_end_is_killed_with_what_it_started(tmp_path):
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    timeout = 0.5
    while not (pid_file.exists() and pid_file.read_text()):
        # A busy machine needs longer to start the program.
        assert timeout < TIMEOUT_SECONDS
        assert run(code, str(pid_file), timeout=timeout).error == "DeadlineExceededError"
        timeout *= 2
    pid = pid_file.read_text()
    until(lambda: is_gone(pid), TIMEOUT_SECONDS, "the process that it started is gone")


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_process_that_keeps_the_output_open_does_not_delay_the_response():
    """It may be a server that the program starts; it goes on."""
    code = (
        "import os, signal, time\n"
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(600)\n"
        "print(pid, flush=True)\n"
        "os._exit(0)"
    )
    started = time.monotonic()
    response = run(code)

    assert time.monotonic() - started < TIMEOUT_SECONDS
    os.kill(int(response.body), 9)


def test_output_is_bounded():
    response = run("import os\nfor _ in range(1000): os.write(1, b'x' * 65536)")

    assert (response.status, len(response.body)) == (0, MAX_OUTPUT_BYTES)


def test_a_program_that_reads_nothing_blocks_nothing():
    assert run("", stdin=b"x" * 1_000_000).status == 0


def test_standard_error_is_dropped(capfd):
    run("import sys; print('CANARY', file=sys.stderr)")

    assert "CANARY" not in "".join(capfd.readouterr())


def test_settings_are_not_passed_to_the_program(monkeypatch):
    monkeypatch.setenv("SENTINEL_SINKS__SLACK__URL", "CANARY")
    monkeypatch.setenv("SENTINEL_TOKEN", "CANARY")
    monkeypatch.setenv("SENTINEL_HOME", "/home")
    response = run("import os; print(dict(os.environ))")

    assert "CANARY" not in response.body
    assert "'SENTINEL_HOME': '/home'" in response.body


@pytest.mark.parametrize(
    ("program", "error"),
    [("/does/not/exist", "FileNotFoundError"), ("/etc/passwd", "PermissionError")],
)
def test_a_program_that_cannot_be_started_is_an_error_named_by_its_class(program, error):
    response = send(ProcessInput((program, "CANARY")))

    assert f"{response}" == error


def test_a_signal_that_ends_the_program_is_its_negative_status():
    assert run("import os; os.kill(os.getpid(), 9)").status == -9
