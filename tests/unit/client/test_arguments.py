"""Invalid arguments of `monitor` are rejected when they are given."""

import pytest

import sentinel
from sentinel.client.arguments import parse_arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"save_step": 5}, "save_step.*did you mean 'save_steps'"),
        ({"zzz": 5}, "zzz"),
        ({"save_steps": "500"}, "save_steps.*integer.*str '500'"),
        ({"save_steps": True}, "save_steps.*bool True"),
        ({"max_steps": 0}, "max_steps.*at least 1.*int 0"),
        ({"run": 5}, "run.*name.*int 5"),
        ({"run": " "}, "run"),
        ({"agent": "no"}, "agent.*True or False.*str 'no'"),
        ({"strict": 1}, "strict"),
        ({"config": 5}, "config.*path.*int 5"),
        ({"config": "/no/such/sentinel.toml"}, "no such file"),
        ({"metadata": ["lr"]}, "metadata.*mapping.*list"),
        ({"metadata": {"lr": [1]}}, "'lr'.*number or a text.*list"),
        ({"metadata": {1: 2}}, "metadata.*names"),
        ({"tier": "urgent"}, "tier.*'page', 'notify', 'quiet'.*str 'urgent'"),
        ({"tier": 1}, "tier.*int 1"),
        ({"insight": "loss"}, "insight.*'gradient_flow'.*str 'loss'"),
        ({"insight": ["gradient_flow", None]}, "insight.*'gradient_flow'.*None"),
        ({"insight": 5}, "insight.*int 5"),
        ({"aggregate": "ring"}, "aggregate.*'agent', 'collective'.*str 'ring'"),
        ({"aggregate": True}, "aggregate.*bool True"),
        ({"on_critical": "halt"}, "on_critical.*'checkpoint' or 'stop', or a function.*'halt'"),
        ({"on_critical": ["stop", 5]}, "on_critical.*int 5"),
        ({"on_critical": 5}, "on_critical.*int 5"),
        ({"on_critical": [print, len]}, "on_critical.*one function"),
        ({"call": print}, "call.*did you mean"),
    ],
    ids=repr,
)
def test_an_invalid_setting_is_rejected_with_a_helpful_message(settings, message):
    with pytest.raises(sentinel.SettingsError, match=f"(?s){message}"):
        sentinel.monitor(**settings)


@pytest.mark.parametrize(
    ("given", "actions", "callback"),
    [
        (None, None, None),
        ([], "", None),
        ("stop", "stop", None),
        (("checkpoint", "stop"), "checkpoint stop", None),
        (print, "call", print),
        (["checkpoint", print], "checkpoint call", print),
    ],
)
def test_on_critical_is_split_into_actions_and_a_callback(given, actions, callback):
    arguments = parse_arguments({"on_critical": given})

    assert (arguments.on_critical, arguments.callback) == (actions, callback)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ()),
        ("gradient_flow", ("gradient_flow",)),
        (["gradient_flow"] * 2, ("gradient_flow",)),
    ],
)
def test_insight_is_one_name_or_several(given, names):
    assert parse_arguments({"insight": given}).insight == names


@pytest.mark.parametrize("value", [5, "train", type("Trainer", (), {})])
def test_only_functions_can_be_decorated(value):
    with pytest.raises(sentinel.SettingsError, match="function"):
        sentinel.monitor(value)
