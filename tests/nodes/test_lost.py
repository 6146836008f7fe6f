"""Nodes, links and agents that fail during a training: one notification, or recovery, or both."""

import signal
import time

import pytest
from agent_results import AgentResults, assert_steps
from hosts import TIMEOUT_SECONDS
from jobs import Job
from programs import free_port
from support.rank_processes import until
from support.the_only import the_only
from tcp_proxy import TcpProxy

NODE_LOST_SECONDS = 15.0


def reasons_by_detector(notifications):
    return [
        (notification.incident.key.detector, notification.reason.value)
        for notification in notifications
    ]


def late_record_count(head):
    """The number of records that arrived after their step was evaluated."""
    return head.metrics().get("sentinel_dropped_records_total", {}).get(("late",), 0.0)


def missing_record_count(steps):
    """The number of records of four ranks that these steps were evaluated without."""
    return sum(4 - record.spread["loss"].count for record in steps)


def wait_until_all_ended(hosts):
    until(
        lambda: not any(host.processes() for host in hosts),
        TIMEOUT_SECONDS,
        "all processes have ended",
    )


@pytest.mark.fault("A10")
def test_a_dead_node_is_notified_once_and_the_run_continues(site, add_receiver, tmp_path):
    hosts = site.add_hosts(3)
    receiver = add_receiver(hosts[0])
    job = Job(tmp_path / "job", hosts, 60, barriers=[20, 60]).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    head.wait_for_steps(20)
    killed = time.time()
    hosts[2].kill()
    until(head.notifications, TIMEOUT_SECONDS, head.log)
    notification = the_only(head.notifications())
    assert notification.incident.key.detector == "node_lost"
    # How soon that is, test_collective_fallback.py checks with a clock of its own.
    assert notification.incident.opened_time > killed
    left = [*job.ranks_of(hosts[0]), *job.ranks_of(hosts[1])]
    job.release(20)
    job.wait_at(60, left)
    steps = head.wait_for_steps(60)
    job.release(60)
    assert job.exit_codes() == [0, 0, -signal.SIGKILL]
    assert_steps(steps[:20], range(1, 21), job.all_ranks)
    assert_steps(steps[20:], range(21, 61), left, missing="4,5")
    # The run finishes well without the node, which resolves its loss.
    until(lambda: len(receiver.accepted) > 1, TIMEOUT_SECONDS, head.log)
    reasons = reasons_by_detector(head.notifications())
    assert reasons == [("node_lost", "opened"), ("node_lost", "resolved")]
    assert len(receiver.accepted) == 2


@pytest.mark.parametrize(
    "until_abandoned", [False, pytest.param(True, marks=pytest.mark.full)], ids=["short", "long"]
)
def test_a_dead_node_and_the_failures_it_causes_are_one_notification(
    loopback, add_receiver, tmp_path, until_abandoned
):
    """With DDP the other ranks raise at once, which is no separate incident."""
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(hosts[0])
    # Longer than it takes to give up the lost ranks.
    hosts[0].settings["SENTINEL_LINGER_SECONDS"] = "5"
    job = Job(tmp_path / "job", hosts, 60, barriers=[20, 60], script="ddp_ranks.py").start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    # A step is written when the next one begins.
    head.wait_for_steps(10)
    killed = time.time()
    hosts[1].kill()
    job.release(20)
    assert job.launchers[hosts[0]].wait(TIMEOUT_SECONDS) != 0
    until(head.notifications, TIMEOUT_SECONDS, head.log)
    if not until_abandoned:
        hosts[0].end_agents()
    head.wait_until_ended()
    notification = the_only(head.notifications())
    assert (notification.incident.key.detector, notification.diagnosis.cause) == (
        "node_lost",
        "node_down",
    )
    assert notification.incident.finding.evidence["ranks"] == "2-3"
    assert "raised" in notification.incident.finding.evidence["first_failed_rank"]
    assert notification.incident.opened_time > killed
    assert len(receiver.accepted) == 1


@pytest.mark.fault("A10")
@pytest.mark.nodes
def test_the_deputy_notifies_a_dead_head_and_the_failures_it_causes(
    loopback, add_receiver, tmp_path
):
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(hosts[1])
    job = Job(tmp_path / "job", hosts, 60, barriers=[20, 60], script="ddp_ranks.py").start()
    head, deputy = AgentResults(hosts[0]), AgentResults(hosts[1])
    job.wait_at(20)
    head.wait_for_steps(10)
    until(lambda: deputy.metrics().get("sentinel_head_connection_up"), TIMEOUT_SECONDS, deputy.log)
    hosts[0].kill()
    job.release(20)
    assert job.launchers[hosts[1]].wait(TIMEOUT_SECONDS) != 0
    until(lambda: receiver.accepted, TIMEOUT_SECONDS, deputy.log)
    notification = the_only(deputy.notifications())
    assert notification.incident.key.detector == "node_lost"
    assert "raised" in notification.incident.finding.evidence["first_failed_rank"]
    deputy.wait_until_ended()
    assert len(receiver.accepted) == 1


# A restarted agent has ten seconds, most of which a busy machine needs to load torch.
@pytest.mark.nodes
def test_a_killed_agent_is_restarted_without_loss_or_notification(site, add_receiver, tmp_path):
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    # Ranks check their agent at their steps, twice a second.
    job = Job(tmp_path / "job", hosts, 100, step_seconds=0.05, barriers=[20, 60, 100]).start()
    head = AgentResults(hosts[0])
    for barrier, host in ((20, hosts[0]), (60, hosts[1])):
        job.wait_at(barrier)
        head.wait_for_steps(barrier)
        job.release(barrier)
        host.kill("agent")
    job.wait_at(100)
    head.wait_for_steps(100)
    job.release(100)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, 101), job.all_ranks)
    assert reasons_by_detector(head.notifications()) == []
    assert receiver.accepted == []
    wait_until_all_ended(hosts)


@pytest.mark.fault("A11")
@pytest.mark.nodes
@pytest.mark.parametrize("seconds", [3.0, 7.0, 25.0])
def test_records_behind_a_cut_link_arrive_once_it_is_restored(
    cluster, add_receiver, tmp_path, seconds
):
    """Steps wait for a lost node if the other ranks do; else its late records are counted."""
    hosts = cluster.add_hosts(2)
    receiver = add_receiver(*hosts)
    job = Job(tmp_path / "job", hosts, 60, barriers=[20, 40, 60]).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    head.wait_for_steps(20)
    AgentResults(hosts[1]).wait_until_connected()
    hosts[1].cut()
    cut = time.monotonic()
    job.release(20)
    job.wait_at(40)
    until(lambda: time.monotonic() - cut >= seconds, TIMEOUT_SECONDS, "time has passed")
    hosts[1].restore()
    job.release(40)
    job.wait_at(60)
    missing = missing_record_count(head.wait_for_steps(60))
    until(lambda: late_record_count(head) == missing, TIMEOUT_SECONDS, f"{missing} late records")
    job.release(60)
    assert job.exit_codes() == [0, 0]
    steps = head.wait_until_ended().steps()
    # On a busy machine, the other ranks may still take steps seconds after the cut.
    complete = 20 if seconds > NODE_LOST_SECONDS else 60
    assert_steps(steps[:complete], range(1, complete + 1), job.all_ranks)
    notifications = reasons_by_detector(head.notifications())
    assert notifications[:1] == [("node_lost", "opened")] * (seconds > NODE_LOST_SECONDS)
    assert set(notifications[1:]) <= {("node_lost", "resolved")}
    assert len(receiver.accepted) == len(notifications) <= 2
    wait_until_all_ended(hosts)


@pytest.mark.nodes
def test_records_of_a_node_without_a_link_are_counted_if_the_others_go_on(
    cluster, add_receiver, tmp_path
):
    hosts = cluster.add_hosts(2)
    receiver = add_receiver(*hosts)
    job = Job(tmp_path / "job", hosts, 400, step_seconds=0.05, barriers=[20, 400]).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    head.wait_for_steps(20)
    AgentResults(hosts[1]).wait_until_connected()
    hosts[1].cut()
    job.release(20)
    until(head.notifications, TIMEOUT_SECONDS, head.log)
    job.wait_at(400)
    hosts[1].restore()
    steps = head.wait_for_steps(400)
    missing = missing_record_count(steps)
    until(
        lambda: late_record_count(head) == missing > 0, TIMEOUT_SECONDS, f"{missing} late records"
    )
    assert f"{missing} records arrived too late" in hosts[0].run_python("-m", "sentinel", "status")
    job.release(400)
    assert job.exit_codes() == [0, 0]
    (opened, *later) = reasons_by_detector(head.wait_until_ended().notifications())
    assert opened == ("node_lost", "opened")
    assert set(later) <= {("node_lost", "resolved")}
    assert len(receiver.accepted) == 1 + len(later)
    wait_until_all_ended(hosts)


@pytest.mark.fault("A11", "T7")
@pytest.mark.nodes
def test_a_cut_link_of_the_head_is_one_notification(cluster, add_receiver, tmp_path):
    """The deputy reports the head; what the head could not send meanwhile, it takes back."""
    hosts = cluster.add_hosts(2)
    receiver = add_receiver(hosts[1], hosts[0])
    job = Job(tmp_path / "job", hosts, 60, barriers=[20, 60]).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    head.wait_for_steps(20)
    AgentResults(hosts[1]).wait_until_connected()
    hosts[0].cut()
    until(lambda: receiver.accepted, TIMEOUT_SECONDS, "the deputy reports the head")
    until(head.notifications, TIMEOUT_SECONDS, head.log)
    hosts[0].restore()
    job.release(20)
    job.wait_at(60)
    head.wait_for_steps(60)
    job.release(60)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, 61), job.all_ranks)
    AgentResults(hosts[1]).wait_until_ended()
    statuses = [request.json["status"] for request in receiver.accepted]
    assert statuses in (["firing"], ["firing", "resolved"])
    wait_until_all_ended(hosts)


@pytest.mark.nodes
@pytest.mark.parametrize("victim", [2, 3])
def test_a_killed_rank_of_another_node_is_named_alone(cluster, add_receiver, tmp_path, victim):
    """The other ranks fail after it, each with its own error."""
    hosts = cluster.add_hosts(2)
    receiver = add_receiver(hosts[0])
    hosts[0].settings["SENTINEL_LINGER_SECONDS"] = "5"
    more = {"kind": "torchrun", "script": "ddp_ranks.py", "step_seconds": 0.05}
    job = Job(tmp_path / "job", hosts, 2000, **more).start()
    head = AgentResults(hosts[0])
    head.wait_for_steps(30)
    AgentResults(hosts[1]).wait_until_connected()
    (process,) = [
        each for each in hosts[1].processes() if each.environ().get("RANK") == str(victim)
    ]
    process.send_signal(signal.SIGKILL)
    assert all(job.exit_codes())
    head.wait_until_ended()
    (opened, *later) = head.notifications()
    incident = opened.incident
    assert (incident.key.detector, incident.finding.rank) == ("run_died", victim)
    assert incident.finding.summary.startswith(f"Rank {victim} was killed by SIGKILL")
    assert {each.reason.value for each in later} <= {"updated", "resolved"}
    assert len(receiver.accepted) <= 2
    wait_until_all_ended(hosts)


@pytest.mark.nodes
def test_ranks_of_a_node_that_never_reached_the_head_are_named(cluster, add_receiver, tmp_path):
    hosts = cluster.add_hosts(2)
    receiver = add_receiver(hosts[0])
    hosts[0].settings["SENTINEL_DETECTORS__RUN_STALLED__FLOOR"] = "5"
    # An agent that does not connect stands for one that has no time to.
    hosts[1].settings["SENTINEL_CLUSTER__HEAD"] = "10.88.0.99:14000"
    more = {"kind": "torchrun", "script": "ddp_ranks.py"}
    job = Job(tmp_path / "job", hosts, 60, barriers=[20], **more).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    status = hosts[0].run_python("-m", "sentinel", "status")
    assert "no data from 2 ranks (2-3)" in status
    hosts[1].cut()
    hosts[1].kill()
    job.release(20)
    until(lambda: receiver.accepted, TIMEOUT_SECONDS, head.log)
    summary = receiver.accepted[0].json["commonAnnotations"]["summary"]
    assert "Nothing was ever received from ranks 2-3: check their nodes first." in summary


@pytest.mark.fault("A11", "T7")
@pytest.mark.nodes
def test_records_spooled_without_a_head_arrive_later(loopback, add_receiver, tmp_path):
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(hosts[0])
    port = free_port()
    with TcpProxy(("127.0.0.1", port)) as proxy:
        for host, there in zip(hosts, (port, proxy.port), strict=True):
            host.settings["SENTINEL_CLUSTER__HEAD"] = f"127.0.0.1:{there}"
        job = Job(tmp_path / "job", hosts, 60, barriers=[20, 40]).start()
        head = AgentResults(hosts[0])
        job.wait_at(20)
        head.wait_for_steps(20)
        proxy.cut()
        job.release(20)
        job.wait_at(40)
        proxy.restore()
        job.release(40)
        assert job.exit_codes() == [0, 0]
        assert_steps(head.wait_until_ended().steps(), range(1, 61), job.all_ranks)
        AgentResults(hosts[1]).wait_until_ended()
    assert reasons_by_detector(head.notifications()) == [] == receiver.accepted
    wait_until_all_ended(hosts)


@pytest.mark.nodes
def test_a_run_with_an_unmonitored_node_is_evaluated_without_it(site, add_receiver, tmp_path):
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    job = Job(tmp_path / "job", hosts, 40, barriers=[30], unmonitored=hosts[1:]).start()
    head = AgentResults(hosts[0])
    job.wait_at(30)
    head.wait_for_steps(30)
    job.release(30)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, 41), job.ranks_of(hosts[0]))
    assert reasons_by_detector(head.notifications()) == [] == receiver.accepted
    wait_until_all_ended(hosts)


@pytest.mark.fault("T6")
def test_clock_skew_of_an_hour_has_no_effect(site, add_receiver, tmp_path):
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    hosts[1].shift_clock(3600.0)
    started_at = time.time()
    job = Job(tmp_path / "job", hosts, 40, barriers=[30]).start()
    head = AgentResults(hosts[0])
    job.wait_at(30)
    steps = head.wait_for_steps(30)
    job.release(30)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, 41), job.all_ranks)
    assert all(started_at <= record.time <= time.time() for record in steps)
    assert reasons_by_detector(head.notifications()) == [] == receiver.accepted
    wait_until_all_ended(hosts)
