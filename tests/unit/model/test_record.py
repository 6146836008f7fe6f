import pytest

from sentinel.model import record
from sentinel.model.record import Event


@pytest.mark.parametrize("event", Event)
def test_each_event_has_a_global_name(event):
    assert getattr(record, event.name) is event
