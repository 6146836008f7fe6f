"""Arguments: a wrong word is refused where it is written, with the right one."""

import pytest

import sentinel
from sentinel.client.arguments import parse_arguments


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"save_step": 5}, "save_step.*did you mean 'save_steps'"),
        ({"zzz": 5}, "zzz"),
        ({"save_steps": "500"}, "save_steps.*whole number.*str '500'"),
        ({"save_steps": True}, "save_steps.*bool True"),
        ({"max_steps": 0}, "max_steps.*at least 1.*int 0"),
        ({"run": 5}, "run.*name.*int 5"),
        ({"run": " "}, "run"),
        ({"agent": "no"}, "agent.*True or False.*str 'no'"),
        ({"strict": 1}, "strict"),
        ({"config": 5}, "config.*path.*int 5"),
        ({"config": "/no/such/sentinel.toml"}, "no such file"),
        ({"facts": ["lr"]}, "facts.*mapping.*list"),
        ({"facts": {"lr": [1]}}, "'lr'.*number or a text.*list"),
        ({"facts": {1: 2}}, "facts.*names"),
        ({"tier": "loud"}, "tier.*'page', 'notify', 'quiet'.*str 'loud'"),
        ({"tier": 1}, "tier.*int 1"),
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
def test_a_wrong_setting_is_refused_where_it_is_written(settings, words):
    with pytest.raises(sentinel.SettingsError, match=f"(?s){words}"):
        sentinel.monitor(**settings)


@pytest.mark.parametrize(
    ("given", "words", "called"),
    [
        (None, None, None),
        ([], "", None),
        ("stop", "stop", None),
        (("checkpoint", "stop"), "checkpoint stop", None),
        (print, "call", print),
        (["checkpoint", print], "checkpoint call", print),
    ],
)
def test_what_is_asked_when_a_case_turns_critical(given, words, called):
    arguments = parse_arguments({"on_critical": given})

    assert (arguments.on_critical, arguments.callback) == (words, called)


@pytest.mark.parametrize("thing", [5, "train", type("Trainer", (), {})])
def test_only_functions_can_be_watched(thing):
    with pytest.raises(sentinel.SettingsError, match="function"):
        sentinel.monitor(thing)
