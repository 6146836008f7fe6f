"""No call of the public API raises, whatever its arguments and whatever happens to the agent.

20,000 calls by default; benchmarks/hostile_calls.py makes a million.
"""

from __future__ import annotations

import os

import pytest
from support.hostile_calls import run_hostile_calls

pytestmark = [pytest.mark.chaos]

CALLS = int(os.environ.get("CHAOS_CALLS", "20000"))


@pytest.mark.fault("I5")
def test_no_call_raises(tmp_path):
    result = run_hostile_calls(tmp_path, CALLS)

    assert result["calls"] == CALLS
    assert (result["raised"], result["first"], result["internal_errors"]) == (0, [], 0)
    assert result["exit_code"] == 0
