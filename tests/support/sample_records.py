"""Records of sampled texts, and records of the run around them."""

from __future__ import annotations

from sentinel.model.record import WHOLE_RUN, Event, Record


def sample(
    step, text="a b c d a b c d", *, rank=0, step_index=None, time=100.0, attempt=0, **values
):
    """A SAMPLE record of one rank with that completion."""
    return Record(
        "run",
        rank,
        step,
        time,
        Event.SAMPLE,
        values={"length": float(len(text)), **values},
        attributes={"prompt": "p", "completion": text},
        attempt=attempt,
        step_index=step if step_index is None else step_index,
    )


def run_record(event, step=0, time=100.0, **values):
    """A record of the whole run."""
    return Record("run", WHOLE_RUN, step, time, event, values=values, step_index=step)
