"""A courier killed at random moments, before a receiver that fails, loses no page.

`CHAOS_KILLS` sets how often it is killed.
"""

import multiprocessing
import os
import random
from collections import defaultdict
from contextlib import closing
from itertools import pairwise

import pytest
from delivery_process import SINK, deliver
from support import webhook_receiver
from support.notifications import make_notification
from support.webhook_receiver import Receiver

from sentinel.notify import outbox
from sentinel.store.database import connect

KILLS = int(os.environ.get("CHAOS_KILLS", "25"))
PAGES = 4 * KILLS
LONGEST_HANG = 0.3
LONGEST_END = 600.0


def troubled(random_, requests):
    """Modes for that many requests: four in ten are some failure."""
    modes = {
        webhook_receiver.ok(): 60,
        webhook_receiver.status(500): 20,
        webhook_receiver.status(429, Retry_After="0.05"): 8,
        webhook_receiver.hang_up(): 6,
        webhook_receiver.hang(LONGEST_HANG): 3,
        webhook_receiver.accept_then_hang(LONGEST_HANG): 3,
    }
    return random_.choices(list(modes), list(modes.values()), k=requests)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_every_repeat_has_a_reason(tmp_path):
    """A repeat needs a receiver that took a page without a word, or a kill before the commit."""
    random_ = random.Random(20)
    path = tmp_path / "sentinel.db"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["delivery_process"])
    with Receiver(script=troubled(random_, 100 * PAGES)) as there:
        for number in range(KILLS):
            # Each process sends to a path of its own: so it is known who sent what.
            url = f"{there.url}/{number}"
            process = context.Process(target=deliver, args=(path, url, PAGES))
            process.start()
            process.join(random_.uniform(0.05, 0.5))
            process.kill()
            process.join()
        last = context.Process(target=deliver, args=(path, f"{there.url}/{KILLS}", PAGES))
        last.start()
        last.join(LONGEST_END)
        last.kill()
        last.join()
    assert last.exitcode == 0, "what the kills left behind was not delivered in time"

    taken = defaultdict(list)
    for request in there.accepted:
        taken[request.headers["webhook-id"]].append(request)
    last_words = {request.path: request for request in there.requests}
    raised = [outbox.idempotency_key(make_notification(episode=n + 1), SINK) for n in range(PAGES)]
    assert taken.keys() == set(raised), "a page was lost, or one came that nobody raised"
    for requests in taken.values():
        # What a killed process had sent may be read after the first words of its successor.
        for earlier, later in pairwise(sorted(requests, key=sender)):
            assert has_a_reason(earlier, later, last_words), "a page was repeated without a reason"
    with closing(connect(path)) as connection:
        assert outbox.count_by_state(connection) == {(SINK, "delivered"): PAGES}
    unanswered = sum(not request.answered for request in there.accepted)
    print(
        f"{KILLS} kills, {PAGES} pages in {len(there.requests)} requests: 0 lost, "
        f"{len(there.accepted) - PAGES} repeated, {unanswered} taken without an answer"
    )


def sender(request):
    """Number of the process that sent it."""
    return int(request.path.rpartition("/")[2])


def has_a_reason(earlier, later, last_words):
    """Unanswered, or the very request after which its sender was killed: before the commit."""
    killed = later.path != earlier.path and last_words[earlier.path] is earlier
    return not earlier.answered or killed
