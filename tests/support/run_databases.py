"""Databases of runs, written through `History` as an agent writes them."""

from __future__ import annotations

import random
from contextlib import closing
from math import nan

from sentinel.aggregate.combine import RANK_VALUE_SIGNALS, compute_spread
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect, transaction
from sentinel.store.history import History

NOW = 1_700_000_000.0
ROWS_PER_COMMIT = 1000


def step_record(step, values, *, ranks=1, attempt=0, seed=0, time=None, event=Event.STEP):
    """A combined record: each of several ranks has the value with its own small deviation."""
    source = random.Random(seed * 1_000_003 + step)
    spread, combined = {}, {}
    for name, value in values.items():
        share = 0.01 if ranks > 1 else 0.0
        of_ranks = [value * (1.0 + share * source.random()) for _ in range(ranks)]
        keeps = name in RANK_VALUE_SIGNALS and ranks > 1
        spread[name] = compute_spread(range(ranks), of_ranks, keep_values=keeps)
        has_value = not spread[name].bad_ranks
        combined[name] = spread[name].mean if has_value else nan
    when = NOW + step if time is None else time
    return Record("run", WHOLE_RUN, step, when, event, combined, {}, spread, attempt)


def write_records(path, records):
    """Append the records to the database at `path`, a thousand in a transaction."""
    with closing(connect(path)) as connection:
        history = History(connection)
        pending = iter(records)
        while True:
            with transaction(connection):
                count = 0
                for record in pending:
                    history.update(Result(record))
                    count += 1
                    if count == ROWS_PER_COMMIT:
                        break
            if count < ROWS_PER_COMMIT:
                return
