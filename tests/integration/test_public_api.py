"""The public names and signatures, which change only with an entry in the changelog."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sentinel

ROOT = Path(__file__).parents[2]

SIGNATURES = {
    "log": "(values, step=None, weight=None)",
    "log_samples": "(prompts, completions, rewards=None, step=None, finished=None)",
    "mark": "(event, step=None, **attributes)",
    "monitor": "(function=None, /, **settings)",
    "phase": "(name)",
    "requested": "()",
}


def signature_without_types(name: str) -> str:
    """The signature of a public function, without annotations."""
    signature = inspect.signature(getattr(sentinel, name))
    plain = [part.replace(annotation=part.empty) for part in signature.parameters.values()]
    return str(inspect.Signature(plain))


def test_the_public_names():
    assert sorted(sentinel.__all__) == sorted(
        [*SIGNATURES, "CommandContext", "SettingsError", "__version__"]
    )


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_of_a_public_function(name):
    assert signature_without_types(name) == SIGNATURES[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", "llama-grpo"),
        ("save_steps", 500),
        ("max_steps", 20_000),
        ("config", ROOT / "pyproject.toml"),
        ("agent", False),
        ("aggregate", "collective"),
        ("strict", True),
        ("samples", 8),
        ("metadata", {"beta": 0.1, "optimizer": "adamw"}),
        ("tier", "notify"),
        ("on_critical", ["checkpoint", "stop"]),
        ("on_critical", print),
    ],
)
def test_monitor_accepts_this_argument(name, value):
    assert callable(sentinel.monitor(**{name: value}))


def test_an_unknown_argument_is_rejected_with_a_suggestion():
    with pytest.raises(sentinel.SettingsError, match="did you mean 'save_steps'"):
        sentinel.monitor(save_step=500)


def test_every_public_name_is_in_the_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()

    assert [name for name in sentinel.__all__ if f"`{name}`" not in text] == []


def test_an_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="watch"):
        _ = sentinel.watch


def test_the_version_is_the_one_in_the_changelog():
    assert sentinel.__version__ in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    "call", ["log({'loss': 1.0})", "mark('save')", "phase('eval').__enter__()", "requested()"]
)
def test_outside_a_run_every_function_does_nothing(call, tmp_path):
    """It creates no file and no process, and prints nothing."""
    environ = {
        "SENTINEL_HOME": str(tmp_path / "home"),
        "SENTINEL_RUNTIME_DIR": str(tmp_path / "run"),
    }
    command = [sys.executable, "-c", f"import sentinel; sentinel.{call}"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environ, check=True
    )

    assert done.stdout + done.stderr == ""
    assert list(tmp_path.iterdir()) == []
