"""A training fails whose end is that of all processes of its job, the agent among them."""

import os
import subprocess
import sys

import pytest
from support.webhook_receiver import Receiver

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
        own = {"SENTINEL_SINKS__WEBHOOK__URL": receiver.url, "SENTINEL_LINGER_SECONDS": "600"}
        done = subprocess.run(
            [*prefix, *script(TRAIN)],
            env=os.environ | own | environ,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if "Operation not permitted" in done.stderr:
            pytest.skip("no namespace of process ids can be created here")
        sent = [request.json for request in receiver.accepted]

    assert done.returncode == 1, done.stderr
    (alert,) = (body["alerts"][0] for body in sent)
    assert alert["labels"]["detector"] == "run_failed"
    assert "out of data" in str(alert["annotations"])
