"""All nodes of a large job join at once, and none has to retry."""

from __future__ import annotations

from support.message_stores import (
    AUTHENTICATOR,
    await_condition,
    connect_outsider,
    read_instance_id,
    refusal_counts,
    running_server,
)

from sentinel.cluster.protocol import SLOT_COUNTER_KEY, slot_keys
from sentinel.cluster.server import MAX_PENDING_JOINS


def test_all_nodes_with_a_hello_are_accepted_however_many_join():
    with running_server() as server:
        store = connect_outsider(server.port)
        store.increment(SLOT_COUNTER_KEY, MAX_PENDING_JOINS)
        await_condition(
            lambda: len(server._pending_joins) == MAX_PENDING_JOINS, "all slots are pending"
        )
        instance_id, received = read_instance_id(store), []
        keys = [slot_keys(slot).hello for slot in range(1, 2 * MAX_PENDING_JOINS + 1)]
        hellos = {key: AUTHENTICATOR.sign(f"{key}/{instance_id}", b'{"host": "b"}') for key in keys}

        store.write({**hellos, SLOT_COUNTER_KEY: str(len(keys)).encode()})

        await_condition(
            lambda: received.extend(server.drain_hellos()) or len(received) == len(keys),
            "all hellos",
        )
        assert refusal_counts(server.counters) == {}
