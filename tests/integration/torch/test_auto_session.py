"""A run without a decorator is monitored to the end of the interpreter."""

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
        ("end_auto_session()\nend_auto_session()", {"outcome": "finished"}),
        ("raise KeyError", {"outcome": "exception", "exception": "KeyError"}),
        ("end_auto_session(ValueError())", {"outcome": "exception", "exception": "ValueError"}),
    ],
)
def test_the_outcome_is_how_the_interpreter_ended(script, recorded, ending, outcome):
    subprocess.run(script(BEGIN + ending), capture_output=True, timeout=240, check=False)

    start, step, stop = recorded()[0]

    assert (start.event, step.values["loss"]) == (Event.START, 1.0)
    attributes = {name: text for name, text in stop.attributes.items() if name != "location"}
    assert (stop.event, attributes) == (Event.STOP, outcome)


def test_an_uncaught_error_is_still_printed(script):
    done = subprocess.run(
        script(BEGIN + "raise KeyError('message')"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 1
    assert "KeyError: 'message'" in done.stderr


def test_a_verl_rank_that_has_already_loaded_torch_starts_monitoring(script, monkeypatch):
    """The verl framework usually loads its plug-ins after torch and before the compiler."""
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
