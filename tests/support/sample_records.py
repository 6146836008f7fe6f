"""Records of texts, and of the run around them."""

from __future__ import annotations

from sentinel.model.record import WHOLE_RUN, Event, Record


def sample(step, said="a b c d a b c d", *, rank=0, beat=None, time=100.0, attempt=0, **values):
    return Record(
        "run",
        rank,
        step,
        time,
        Event.SAMPLE,
        values={"length": float(len(said)), **values},
        attributes={"prompt": "p", "completion": said},
        attempt=attempt,
        step_index=step if beat is None else beat,
    )


def whole(event, step=0, time=100.0, **values):
    return Record("run", WHOLE_RUN, step, time, event, values=values, step_index=step)
