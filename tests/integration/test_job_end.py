"""A training fails whose end is that of all processes of its job, the agent among them."""

import json
import os
import subprocess
import sys
import time

import pytest
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.agent.dead_run_closer import KILLED_AFTER_SECONDS, DeadRunCloser
from sentinel.agent.registration import REGISTRATION_NAME
from sentinel.config.settings import load_settings
from sentinel.transport.paths import home_dir, is_agent_running

pytestmark = pytest.mark.timeout(600)

TIMEOUT_SECONDS = 240
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
RUN = (sys.executable, "-m", "sentinel", "run", "--")
TRAIN = """
import sentinel

@sentinel.monitor(run="first")
def train():
    for step in range(20):
        sentinel.log({"loss": 2.0 - step / 100}, step=step)
    raise RuntimeError("out of data")

train()
"""
IN_SHELL = ("sh", "-c", '"$@"; exit $?', "sh")


LAUNCHER = """
import os, subprocess, sys, time

# As torchrun does: the first rank that fails ends the others, and then the launcher.
ranks = [
    subprocess.Popen(
        sys.argv[1:],
        env=os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"},
        start_new_session=True,
    )
    for rank in "01"
]
while not any(rank.poll() for rank in ranks):
    time.sleep(0.05)
for rank in ranks:
    rank.terminate()
for rank in ranks:
    rank.wait()
sys.exit(1)
"""
TRAIN_RANK = TRAIN.replace(
    "    raise",
    """
    import os, time
    while os.environ["RANK"] not in os.environ["FAILING"]:
        time.sleep(1.0)
    raise""",
)


@pytest.mark.fault("P29")
@pytest.mark.parametrize("failing", ["0", "1", "01"])
def test_a_failed_rank_of_a_launcher_is_delivered_before_the_end(script, failing):
    """Its launcher is a child of the first process."""
    with Receiver() as receiver:
        done = run(
            [*CONTAINER, *IN_SHELL, sys.executable, "-c", LAUNCHER, *script(TRAIN_RANK)],
            receiver,
            FAILING=failing,
        )
        sent = [request.json for request in receiver.accepted]

    assert done.returncode == 1, done.stderr
    (alert,) = (body["alerts"][0] for body in sent)
    assert alert["labels"]["detector"] == "run_failed"


def run(command, receiver, **environ):
    """Run a command, whose alerts the receiver gets, to its end."""
    own = {"SENTINEL_SINKS__WEBHOOK__URL": receiver.url, "SENTINEL_LINGER_SECONDS": "600"}
    done = subprocess.run(
        command,
        env=os.environ | own | environ,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("no namespace of process ids can be created here")
    return done


@pytest.mark.parametrize(
    ("prefix", "environ"),
    [
        (CONTAINER, {}),
        ((*CONTAINER, *RUN), {}),
        ((*CONTAINER, *IN_SHELL, *RUN), {}),
        ((), {"SLURM_JOB_ID": "7"}),
        (RUN, {"SLURM_JOB_ID": "7"}),
    ],
    ids=["container", "container-run", "container-shell-run", "slurm", "slurm-run"],
)
def test_the_failure_is_delivered_before_the_end(script, tmp_path, prefix, environ):
    with Receiver() as receiver:
        done = run([*prefix, *script(TRAIN)], receiver, **environ)
        sent = [request.json for request in receiver.accepted]

    assert done.returncode == 1, done.stderr
    (alert,) = (body["alerts"][0] for body in sent)
    assert alert["labels"]["detector"] == "run_failed"
    assert "out of data" in str(alert["annotations"])


@pytest.mark.full
@pytest.mark.fault("P30")
@pytest.mark.parametrize("shared_memory", ["kept", "lost"])
def test_a_container_that_is_killed_is_reported_by_another_process(
    script, tmp_path, shared_memory, monkeypatch
):
    """With the container its agent is killed, and its shared memory is gone unless it is shared."""
    train = TRAIN.replace("range(20)", "range(10**6)").replace(
        "step=step)", "step=step)\n        time.sleep(0.02)"
    )
    rings = tmp_path / "rings"
    rings.mkdir()
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(rings))
    mount = f"mount -t tmpfs tmpfs {rings} && " if shared_memory == "lost" else ""
    with Receiver() as receiver:
        environ = {"SENTINEL_SINKS__WEBHOOK__URL": receiver.url}
        container = subprocess.Popen(
            [
                *CONTAINER,
                "--mount",
                "sh",
                "-c",
                f'{mount}exec "$@"',
                "sh",
                *script(f"import time{train}"),
            ],
            env=os.environ | environ,
        )
        try:
            until(lambda: step_of_home() > 20, TIMEOUT_SECONDS, "a copy in the home directory")
        finally:
            container.kill()
            container.wait()
        (home,) = home_dir().glob("runs/*")
        until(lambda: not is_agent_running(home), TIMEOUT_SECONDS, "the end of the agent")
        assert receiver.requests == []
        settings = load_settings({}, environ=environ)
        closer = DeadRunCloser(settings, lambda: time.time() + 2 * KILLED_AFTER_SECONDS)
        closer.close_cases()
        sent = [request.json for request in receiver.accepted]

    (alert,) = (body["alerts"][0] for body in sent)
    assert alert["labels"]["detector"] == "run_died"
    assert "together with the agent" in alert["annotations"]["summary"]


def step_of_home():
    """The last step of the run in the home directory, once its agent is registered there."""
    for path in home_dir().glob("runs/*/summary.json"):
        if (path.parent / REGISTRATION_NAME).exists():
            return json.loads(path.read_text())["step"] or 0
    return 0
