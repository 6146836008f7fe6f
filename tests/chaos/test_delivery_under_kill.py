"""Tests that a dispatcher killed at random times loses no notification at a failing receiver.

`CHAOS_KILLS` is the number of kills, `CHAOS_NOTIFICATIONS` that of notifications.
"""

import multiprocessing
import os
import random
from collections import defaultdict
from contextlib import closing
from itertools import pairwise

import pytest
from delivery_process import SINK, deliver, deliver_updates
from support import webhook_receiver
from support.notifications import make_notification
from support.webhook_receiver import Receiver

from sentinel.notify import outbox
from sentinel.store.database import connect

KILLS = int(os.environ.get("CHAOS_KILLS", "12"))
NOTIFICATIONS = int(os.environ.get("CHAOS_NOTIFICATIONS", f"{4 * KILLS}"))
MAX_LIFE_SECONDS = max(0.5, 0.06 * NOTIFICATIONS / KILLS)
"""Long enough that the killed processes, and not the last one, deliver most notifications."""
MAX_HANG_SECONDS = 0.3
LAST_DELIVERY_TIMEOUT_SECONDS = 600.0


def random_modes(random_, requests):
    """Modes for that many requests, of which 40 % fail."""
    modes = {
        webhook_receiver.ok(): 60,
        webhook_receiver.status(500): 20,
        webhook_receiver.status(429, Retry_After="0.05"): 8,
        webhook_receiver.hang_up(): 6,
        webhook_receiver.hang(MAX_HANG_SECONDS): 3,
        webhook_receiver.accept_then_hang(MAX_HANG_SECONDS): 3,
    }
    return random_.choices(list(modes), list(modes.values()), k=requests)


@pytest.mark.fault("D4", "D9", "D10")
@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_every_repeat_has_a_reason(tmp_path):
    """The reasons are a missing response and a kill before the commit."""
    random_ = random.Random(20)
    path = tmp_path / "sentinel.db"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["delivery_process"])
    with Receiver(script=random_modes(random_, 100 * NOTIFICATIONS)) as receiver:
        for number in range(KILLS):
            # The path identifies the process that sent a request.
            url = f"{receiver.url}/{number}"
            process = context.Process(target=deliver, args=(path, url, NOTIFICATIONS))
            process.start()
            process.join(random_.uniform(0.05, MAX_LIFE_SECONDS))
            process.kill()
            process.join()
        last = context.Process(
            target=deliver, args=(path, f"{receiver.url}/{KILLS}", NOTIFICATIONS)
        )
        last.start()
        last.join(LAST_DELIVERY_TIMEOUT_SECONDS)
        last.kill()
        last.join()
    assert last.exitcode == 0, "the queue was not delivered in time"

    accepted = defaultdict(list)
    for request in receiver.accepted:
        accepted[request.headers["webhook-id"]].append(request)
    last_requests = {request.path: request for request in receiver.requests}
    expected = [
        outbox.idempotency_key(make_notification(episode=n + 1), SINK) for n in range(NOTIFICATIONS)
    ]
    assert accepted.keys() == set(expected), "a notification was lost or invented"
    repeats_by_kill = 0
    for requests in accepted.values():
        # A request of a killed process can be read after the first one of its successor.
        for earlier, later in pairwise(sorted(requests, key=sender)):
            assert has_a_reason(earlier, later, last_requests), (
                "a notification was repeated without a reason"
            )
            repeats_by_kill += earlier.answered
    with closing(connect(path)) as connection:
        assert outbox.count_by_state(connection) == {(SINK, "delivered"): NOTIFICATIONS}
    unanswered = sum(not request.answered for request in receiver.accepted)
    print(
        f"{KILLS} kills, {NOTIFICATIONS} notifications in {len(receiver.requests)} requests: "
        f"0 lost, {repeats_by_kill} repeated by a kill, "
        f"{len(receiver.accepted) - NOTIFICATIONS - repeats_by_kill} repeated of "
        f"{unanswered} accepted without a response"
    )


UPDATE_KILLS = KILLS // 3
CASES = 3 * UPDATE_KILLS


@pytest.mark.fault("D10")
@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_the_message_of_each_case_gets_its_newest_update(tmp_path):
    """The receipt of the message survives the agent; a repeat is a kill before the commit."""
    random_ = random.Random(21)
    path = tmp_path / "sentinel.db"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["delivery_process"])
    modes = [webhook_receiver.accept_with_id(), webhook_receiver.status(500)]
    script = random_.choices([*modes, webhook_receiver.hang_up()], [6, 3, 1], k=100 * CASES)
    with Receiver(modes[0], script=script) as receiver:
        for number in range(UPDATE_KILLS):
            url = f"{receiver.url}/{number}"
            process = context.Process(target=deliver_updates, args=(path, url, CASES))
            process.start()
            process.join(random_.uniform(0.05, 0.5))
            process.kill()
            process.join()
        url = f"{receiver.url}/{UPDATE_KILLS}"
        last = context.Process(target=deliver_updates, args=(path, url, CASES))
        last.start()
        last.join(LAST_DELIVERY_TIMEOUT_SECONDS)
        last.kill()
        last.join()
    assert last.exitcode == 0, "the queue was not delivered in time"

    bodies = [request.json for request in sorted(receiver.accepted, key=sender)]
    shown = {body["changes"] or body["id"]: body["summary"] for body in bodies}
    expected = {
        outbox.idempotency_key(make_notification(episode=n + 1), SINK): "2" for n in range(CASES)
    }
    assert shown == expected
    new = sum(body["changes"] is None for body in bodies)
    assert CASES <= new <= CASES + UPDATE_KILLS


def sender(request):
    """Number of the process that sent the request."""
    return int(request.path.rpartition("/")[2])


def has_a_reason(earlier, later, last_requests):
    """Whether `earlier` had no response, or was the last request of a killed process."""
    was_killed = later.path != earlier.path and last_requests[earlier.path] is earlier
    return not earlier.answered or was_killed
