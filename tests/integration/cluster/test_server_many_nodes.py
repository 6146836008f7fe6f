"""Hub: nodes of a large job come all at once, and none of them has to come again."""

from __future__ import annotations

from support.message_stores import SEAL, awaited, birth, hub, refusals, stranger

from sentinel.cluster.endpoints import SLOTS, slot_keys
from sentinel.cluster.server import WELCOMES


def test_who_said_hello_by_now_is_welcome_however_many_come_behind():
    with hub() as hosted:
        board = stranger(hosted.port)
        board.count(SLOTS, WELCOMES)
        awaited(lambda: len(hosted._awaited) == WELCOMES, "all are looked for")
        name, found = birth(board), []
        places = [slot_keys(slot)[0] for slot in range(1, 2 * WELCOMES + 1)]
        hellos = {place: SEAL.close(f"{place}/{name}", b'{"host": "b"}') for place in places}

        board.leave({**hellos, SLOTS: str(len(places)).encode()})

        awaited(lambda: found.extend(hosted.hellos()) or len(found) == len(places), "all hellos")
        assert refusals(hosted.tally) == {}
