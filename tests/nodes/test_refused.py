"""Messages that an agent refuses are counted and reported, and affect no other node."""

import json
import socket

import pytest
from agent_results import AgentResults, assert_steps
from hosts import TIMEOUT_SECONDS
from intruders import (
    HOUR_SECONDS,
    LARGE_STEP_INDEX,
    Insider,
    connect_to_head,
    metadata,
    write_garbage,
)
from jobs import Job
from programs import free_port
from support.rank_processes import until

from sentinel.cluster.protocol import MAX_MESSAGE_BYTES, SLOT_COUNTER_KEY

STEPS = 40


def refusal_counts(head):
    """The number of refused messages by reason."""
    found = head.metrics().get("sentinel_head_connection_rejected_total", {})
    return {reason: count for (reason,), count in found.items() if count}


def doctor_messages(host):
    """Messages and remedies of the doctor on that node that are not ok."""
    lines = host.run_python("-m", "sentinel", "doctor", "--quick", "--json").splitlines()
    found = map(json.loads, lines)
    return [f"{each['message']} {each['remedy']}" for each in found if each["grade"] != "ok"]


def doctor_reports(host, word):
    return any(word in line for line in doctor_messages(host))


def wait_until_all_ended(hosts):
    until(
        lambda: not any(host.processes() for host in hosts),
        TIMEOUT_SECONDS,
        "all processes have ended",
    )


def start_and_pause(site, add_receiver, path):
    """A run of two nodes that waits at half of its steps, its head, and the receiver."""
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    job = Job(path / "job", hosts, 2 * STEPS, barriers=[STEPS, 2 * STEPS]).start()
    head = AgentResults(hosts[0])
    job.wait_at(STEPS)
    head.wait_for_steps(STEPS)
    return job, head, receiver


@pytest.mark.nodes
def test_nodes_with_a_wrong_token_or_head_do_not_affect_the_others(site, add_receiver, tmp_path):
    hosts = site.add_hosts(4)
    receiver = add_receiver(hosts[0])
    _, other, misled, lost = hosts
    for host in hosts:
        host.settings["SENTINEL_CLUSTER__TOKEN"] = "one" if host is not other else "another"
    server = misled.within(lambda: socket.create_server((misled.address, 0)))
    closed = free_port()
    misled.settings["SENTINEL_CLUSTER__HEAD"] = f"{misled.address}:{server.getsockname()[1]}"
    lost.settings["SENTINEL_CLUSTER__HEAD"] = f"{lost.address}:{closed}"
    with server:
        job = Job(tmp_path / "job", hosts, STEPS, barriers=[STEPS], ranks=1).start()
        job.wait_at(STEPS)
        head = AgentResults(hosts[0])
        until(
            lambda: refusal_counts(head).get("token"), TIMEOUT_SECONDS, "the other token is refused"
        )
        # A server that never answers is given up only after a while.
        expected = ((other, "token"), (misled, str(server.getsockname()[1])), (lost, str(closed)))
        for host, word in expected:
            until(
                lambda host=host, word=word: doctor_reports(host, word),
                TIMEOUT_SECONDS,
                f"{word} from the doctor",
            )
        job.release(STEPS)
        assert job.exit_codes() == [0, 0, 0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, STEPS + 1), [0])
    assert receiver.accepted == []
    wait_until_all_ended(hosts)


@pytest.mark.nodes
def test_garbage_of_an_intruder_is_refused_and_reported(site, add_receiver, tmp_path):
    """Garbage, another version, another token, too large, too many: the run continues."""
    job, head, receiver = start_and_pause(site, add_receiver, tmp_path)
    store, _ = connect_to_head(job, job.hosts[1])
    write_garbage(store, range(1, store.increment(SLOT_COUNTER_KEY) + 1))
    _assert_refusals_reported(
        job.hosts[0], head, {"token", "version", "damaged", "too_large", "too_many"}
    )
    before = refusal_counts(head)["damaged"]
    store.write({SLOT_COUNTER_KEY: b"no number"})
    until(lambda: refusal_counts(head)["damaged"] > before, TIMEOUT_SECONDS, "another refusal")
    _assert_unaffected(job, head, receiver)


@pytest.mark.nodes
def test_invalid_messages_of_an_authenticated_node_are_refused_and_reported(
    site, add_receiver, tmp_path
):
    """Repeated records, times in the future, garbage, and messages that are too large."""
    job, head, receiver = start_and_pause(site, add_receiver, tmp_path)
    insider = Insider(*connect_to_head(job, job.hosts[1]))
    insider.join()
    message = insider.encode(
        metadata(1),
        metadata(1),
        metadata(2, later=HOUR_SECONDS),
        metadata(3, step_index=LARGE_STEP_INDEX),
        metadata(4),
    )
    insider.send(message)
    expected = {"repeated": 1, "future": 2}.items()
    until(lambda: expected <= refusal_counts(head).items(), TIMEOUT_SECONDS, "refusals")
    insider.send(message)
    for message in (b"garbage", bytes(MAX_MESSAGE_BYTES + 1024)):
        insider.join()
        insider.send(message)
    _assert_refusals_reported(job.hosts[0], head, {"repeated", "future", "damaged", "too_large"})
    assert refusal_counts(head)["repeated"] == 2
    _assert_unaffected(job, head, receiver)


def _assert_refusals_reported(host, head, reasons):
    until(lambda: reasons <= refusal_counts(head).keys(), TIMEOUT_SECONDS, "refusals by reason")
    for reason in reasons:
        assert doctor_reports(host, f"rejected: {reason}"), doctor_messages(host)


def _assert_unaffected(job, head, receiver):
    """Assert that the run continues to its end, with exact steps and no notifications."""
    job.release(STEPS)
    job.wait_at(job.steps)
    head.wait_for_steps(job.steps)
    job.release(job.steps)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, job.steps + 1), job.all_ranks)
    assert head.notifications() == [] == receiver.accepted
    wait_until_all_ended(job.hosts)
