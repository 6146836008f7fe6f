"""What every integration must do: follow the contract, leave no patch, and tolerate any version."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.recorders import RecordedRank

from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import Patcher
from sentinel.config.plugins import load_modules
from sentinel.model.record import Event

INTEGRATIONS = load_modules("integrations")
REPLACEABLE = sorted(name for name, each in INTEGRATIONS.items() if each.FRAMEWORK != "torch")
"""Integrations whose module a test can replace; torch itself is imported by name."""

ATTACH_AND_UNDO = """
import json, sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import Patcher
from sentinel.client.guard import ErrorGuard
from sentinel.client.recorder import Recorder
from sentinel.transport.identity import Identity
from sentinel.transport.ring import RingWriter


class RecordingPatcher(Patcher):
    state = ""

    def report_state(self, state):
        self.state = state


def hooks():
    module = sys.modules.get("torch.optim.optimizer")
    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    return [[*getattr(module, name, ())] for name in names]


def check(name, recorder):
    integration = import_module(f"sentinel.integrations.{name}")
    try:
        import_module(integration.FRAMEWORK)
    except Exception as error:
        return {"absent": f"{type(error).__name__}: {error}"}
    patcher, hooks_before = RecordingPatcher(name, recorder, TrainingLoop(recorder)), hooks()
    patcher.attach(integration.attach)
    changes = [(owner, key, original) for owner, key, original, _ in patcher._changes]
    first = {(id(owner), key): original for owner, key, original in reversed(changes)}
    patched = [vars(owner)[key] is not first[id(owner), key] for owner, key, _ in changes]
    patcher.undo()
    left = [key for owner, key, _ in changes if vars(owner)[key] is not first[id(owner), key]]
    return {
        "state": patcher.state, "patched": all(patched), "left": left,
        "hooks": hooks() == hooks_before,
    }


with TemporaryDirectory() as folder:
    ring = RingWriter(Path(folder) / "0-0.ring", Identity("run"), 1 << 20)
    recorder = Recorder(ring, ErrorGuard(ring.count_error), lambda: None)
    results = {name: check(name, recorder) for name in sys.argv[2:]}
Path(sys.argv[1]).write_text(json.dumps(results))
"""


@pytest.fixture(params=sorted(INTEGRATIONS))
def integration(request):
    return INTEGRATIONS[request.param]


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Each selected integration, attached to its framework and detached again, in one process."""
    folder = tmp_path_factory.mktemp("frameworks")
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "DO_NOT_TRACK": "1"}
    parameters = (getattr(item, "callspec", None) for item in request.session.items)
    selected = {
        each.params["integration"] for each in parameters if each and "integration" in each.params
    }
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ATTACH_AND_UNDO, str(folder / "out"), *selected],
        env={**os.environ, **offline, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=folder,
        check=True,
        timeout=300,
        stdout=subprocess.DEVNULL,
    )
    return json.loads((folder / "out").read_text())


@pytest.fixture
def rank(tmp_path):
    return RecordedRank(tmp_path / "0-0.ring")


def name_of(integration):
    return integration.__name__.rpartition(".")[2]


def attach(integration, rank):
    """Attach and undo; returns the reported state."""
    name = name_of(integration)
    patcher = Patcher(name, rank.recorder, TrainingLoop(rank.recorder))
    patcher.attach(integration.attach)
    patcher.undo()
    (record,) = [r for r in rank.records() if r.event is Event.METADATA]
    return record.attributes[f"patch/{name}"]


def test_it_follows_the_contract(integration):
    assert integration.FRAMEWORK.replace(".", "").replace("_", "").isalnum()
    assert [*inspect.signature(integration.attach).parameters] == ["patcher"]


def test_it_documents_itself(integration):
    assert integration.__doc__.splitlines()[0].endswith((".", ":", ","))
    assert integration.attach.__doc__


def test_each_framework_module_has_one_integration():
    frameworks = [module.FRAMEWORK for module in INTEGRATIONS.values()]

    assert len({*frameworks}) == len(frameworks)


@pytest.mark.swallows_errors
@pytest.mark.parametrize("integration", REPLACEABLE, indirect=True)
@pytest.mark.parametrize("content", [None, ModuleType("empty")], ids=["missing", "unknown version"])
def test_an_unknown_framework_is_harmless(integration, rank, monkeypatch, content):
    for name in [name for name in sys.modules if name.startswith(f"{integration.FRAMEWORK}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, integration.FRAMEWORK, content)
    # The state is "on" if the integration patches only what it finds in the module.
    state = attach(integration, rank)

    assert state.startswith(("off: ", "on, without ")) or (content and state == "on")


def test_attaching_and_undoing_leaves_the_framework_unchanged(integration, results):
    result = results[name_of(integration)]
    if "absent" in result:
        pytest.skip(result["absent"])

    assert result["state"].startswith("on")
    assert result["patched"]
    assert result["left"] == []
    assert result["hooks"]
