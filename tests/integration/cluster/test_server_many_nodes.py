"""Hub: nodes of a large job come all at once, and none of them has to come again."""

from __future__ import annotations

from support.message_stores import SEAL, awaited, birth, hub, refusals, stranger

from sentinel.cluster.endpoints import SLOT_COUNTER_KEY, slot_keys
from sentinel.cluster.server import MAX_PENDING_JOINS


def test_who_said_hello_by_now_is_welcome_however_many_come_behind():
    with hub() as hosted:
        board = stranger(hosted.port)
        board.increment(SLOT_COUNTER_KEY, MAX_PENDING_JOINS)
        awaited(lambda: len(hosted._pending_joins) == MAX_PENDING_JOINS, "all are looked for")
        name, found = birth(board), []
        places = [slot_keys(slot)[0] for slot in range(1, 2 * MAX_PENDING_JOINS + 1)]
        hellos = {place: SEAL.sign(f"{place}/{name}", b'{"host": "b"}') for place in places}

        board.write({**hellos, SLOT_COUNTER_KEY: str(len(places)).encode()})

        awaited(
            lambda: found.extend(hosted.drain_hellos()) or len(found) == len(places), "all hellos"
        )
        assert refusals(hosted.counters) == {}
