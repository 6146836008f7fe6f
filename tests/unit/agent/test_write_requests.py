"""Where acknowledgements and silences have an effect."""

from types import SimpleNamespace

import pytest

from sentinel.agent.main import Agent


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"role": "single"}, ""),
        ({"role": "head", "head": "gpu-a:14007"}, ""),
        (
            {"role": "follower", "head": "gpu-a:14007"},
            "The head sends the notifications: ask the agent of that node (gpu-a:14007).",
        ),
        (
            {"role": "follower", "head": ""},
            "The head sends the notifications: ask the agent of that node (unknown).",
        ),
    ],
)
def test_only_the_agent_that_notifies_takes_write_requests(status, expected):
    role = SimpleNamespace(role=status["role"], status=lambda: status)

    assert Agent._why_not_notifying(SimpleNamespace(cluster_role=role)) == expected
