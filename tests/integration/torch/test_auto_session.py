"""Unattended: what nobody decorated is watched to the end of the interpreter."""

import subprocess

import pytest

from sentinel.model.record import Event

BEGIN = """
from sentinel.client.arguments import MonitorArguments
from sentinel.client.auto_session import begin_auto_session, end_auto_session
import sentinel
begin_auto_session(MonitorArguments(agent=False))
begin_auto_session()
sentinel.log({"loss": 1.0})
"""


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("", {"outcome": "finished"}),
        ("end()\nend()", {"outcome": "finished"}),
        ("raise KeyError", {"outcome": "exception", "exception": "KeyError"}),
        ("end(ValueError())", {"outcome": "exception", "exception": "ValueError"}),
    ],
)
def test_the_run_ends_with_what_ended_the_interpreter(script, told, ending, outcome):
    subprocess.run(script(BEGIN + ending), capture_output=True, timeout=240, check=False)

    start, step, stop = told()[0]

    assert (start.event, step.values["loss"]) == (Event.START, 1.0)
    assert (stop.event, stop.facts) == (Event.STOP, outcome)


def test_an_error_is_still_shown_as_it_was(script):
    told = subprocess.run(
        script(BEGIN + "raise KeyError('theirs')"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert told.returncode == 1
    assert "KeyError: 'theirs'" in told.stderr


def test_a_rank_of_verl_that_has_loaded_torch_already_is_not_troubled(script, monkeypatch):
    """Its plug-ins are loaded behind torch, and before the compiler, as a rule."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "sentinel.integrations.callbacks.verl")
    monkeypatch.setenv("WG_PREFIX", "group")
    monkeypatch.setenv("RANK", "0")
    text = 'import torch, sys; assert "torch._dynamo" not in sys.modules\n'
    text += "before = torch.Tensor.backward\n"
    text += (
        "import sentinel.integrations.callbacks.verl\nassert torch.Tensor.backward is not before"
    )

    done = subprocess.run(script(text), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
