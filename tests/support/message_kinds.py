"""One notification of each kind, from the real detectors and causes where they make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from support import notifications
from support.notifications import NOW

from sentinel.cli.notify import build_test_notifications
from sentinel.config.plugins import load_classes
from sentinel.config.settings import build_causes
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.rank_stack import Frame, RankStack, serialize_stacks
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import digest
from sentinel.pipeline.cases import CaseBook
from sentinel.pipeline.engine import Engine

RUN = "rloo-4fe1"
CONTEXT = replace(
    notifications.CONTEXT,
    dashboard_url="https://grafana.example/d/run?var-run=rloo-4fe1",
    runbook_url="http://gpu-3:13130/runbooks/NAME",
    checkpoint_path="/out/checkpoint-STEP",
)
Records = Iterable[Record]
STACKS = serialize_stacks(
    [
        RankStack(
            (0, 1, 3),
            (
                Frame("all_reduce", "/venv/torch/distributed/distributed_c10d.py", 2900),
                Frame("train_step", "/home/ana/train.py", 88),
            ),
        ),
        RankStack(
            (2,),
            (
                Frame("read", "/home/ana/shards.py", 31),
                Frame("train_step", "/home/ana/train.py", 80),
            ),
        ),
    ]
)


def notifications_of(records: Records, *detectors: str) -> list[Notification]:
    """What the pipeline sends of these records with these detectors and all causes."""
    factories = {name: load_classes("detectors")[name] for name in detectors}
    engine = Engine(factories, case_book=CaseBook(build_causes()))
    sent = [each for record in records for each in engine.process(record).case_notifications]
    assert not engine.error_counts
    return [_with_context(each) for each in sent]


def record(
    event: Event, step: int, attributes: Mapping[str, str] | None = None, **values: float
) -> Record:
    """A record of the run, whose steps are a second apart."""
    return Record(RUN, WHOLE_RUN, step, NOW + step, event, values, attributes or {})


def double_counting() -> Records:
    """TRL's RLOO: the step counter advances twice per update, and saves come every step."""
    settings = {"framework": "trl", "algorithm": "rloo"}
    yield record(Event.START, 0, settings, max_steps=200.0, save_steps=50.0)
    for update in range(1, 130):
        step = 2 * update
        yield record(
            Event.STEP, step, global_step=float(step), optimizer_steps=float(update), loss=1.0
        )
        if step % 50 == 0 or step > 200:
            yield record(Event.SAVE, step)


def detached_block() -> Records:
    """A block of a language model that has no gradient since the start."""
    settings = {"framework": "trl", "algorithm": "sft"}
    yield record(Event.START, 0, settings, max_steps=2000.0)
    for step in range(10, 110, 10):
        yield record(Event.STEP, step, loss=2.0)
        norms = {f"model.layers.{number}": 0.0 if number == 17 else 0.1 for number in range(24)}
        values = {f"layer_grad_norm/{layer}": norm for layer, norm in norms.items()}
        yield record(Event.LAYERS, step, **values)


def gradient_jump(then: str = "recovers") -> Records:
    """A gradient norm that rises tenfold at step 100, and recovers at step 140."""
    yield record(Event.START, 0, {"framework": "trl"})
    for step in range(1, 260):
        is_high = step >= 100 and (step < 140 or then == "stays")
        noise = 1.0 + 0.1 * ((7 * step) % 11 - 5) / 5
        norm, loss = (8.0, 2.4) if is_high else (0.5, 2.0)
        yield record(Event.STEP, step, grad_norm=norm * noise, loss=loss * noise)
        if step == 80:
            yield record(Event.SAVE, step)
    yield record(Event.STOP, 260, {"outcome": "finished"})


def heartbeats(running: float = 0.0, idle: float = 0.0, **attributes: str) -> Records:
    """Steps, and then heartbeats in which ranks have ended or make no step."""
    for step in range(1, 40):
        yield record(Event.STEP, step, loss=2.0)
    gone, failed = (attributes.get(name, "") for name in ("died_ranks", "failed_ranks"))
    values = {
        "ranks_running": running,
        "ranks_gone": float(len(gone.split(","))) if gone else 0.0,
        "ranks_failed": float(len(failed.split(","))) if failed else 0.0,
        "idle_seconds": idle,
    }
    for seconds in range(0, 8, 2):
        yield Record(
            RUN, WHOLE_RUN, 39, NOW + 40 + idle + seconds, Event.HEARTBEAT, values, attributes
        )


def lost_node() -> Records:
    """A node of two that no longer reports."""
    values = {"nodes": 2.0, "nodes_lost": 1.0, "lost_seconds": 31.0, "ranks_running": 4.0}
    attributes = {
        "lost_nodes": "gpu-4",
        "lost_ranks": "4,5,6,7",
        "blocked_by": "node_lost",
        "state": "running",
    }
    yield record(Event.STEP, 812, loss=2.0)
    yield Record(RUN, WHOLE_RUN, 812, NOW + 850, Event.HEARTBEAT, values, attributes)


def died(**attributes: str) -> Notification:
    """The notification of ranks that ended."""
    return notifications_of(heartbeats(**attributes), "run_died", "run_failed")[0]


def message_kinds() -> dict[str, Callable[[], Notification]]:
    """By name, a function that makes the notification."""
    opened_case = notifications_of(double_counting(), "step_stride", "checkpoint_cadence")
    jump = notifications_of(gradient_jump(), "grad_explosion")
    first = {each.reason: each for each in reversed([*jump, *opened_case])}
    opened = jump[0]
    return {
        "opened": lambda: opened,
        "opened_with_cause": lambda: opened_case[0],
        "escalated": lambda: first[NotificationReason.ESCALATED],
        "updated": lambda: replace(
            opened_case[-1], reason=NotificationReason.UPDATED, number=1
        ),
        "resolved": lambda: first[NotificationReason.RESOLVED],
        "run_finished": lambda: notifications_of(gradient_jump("stays"), "grad_explosion")[-1],
        "layer_without_gradient": lambda: notifications_of(
            detached_block(), "layer_gradient_dead"
        )[0],
        "resolved_with_cause": lambda: _resolved(opened_case[-1]),
        "died_of_memory": lambda: died(
            died_ranks="1", culprit_ranks="1", following_ranks="0,2,3", cause="died",
            signal="SIGKILL", oom_kill="yes", memory_limit="64 GiB",
        ),
        "stopped_by_sigterm": lambda: died(
            died_ranks="0,1", culprit_ranks="0,1", cause="stopped", signal="SIGTERM"
        ),
        "raised_an_exception": lambda: died(
            failed_ranks="0,1", culprit_ranks="1", following_ranks="0", cause="exception",
            exception="ValueError", message="bad sample in shard 7",
            location="train.py:88 in train_step",
        ),
        "stalled": lambda: notifications_of(
            heartbeats(
                running=4.0,
                idle=45.0,
                straggler_ranks="0,1,2,3",
                all_behind="yes",
                state="running",
                stacks=STACKS,
            ),
            "run_stalled",
        )[0],
        "suspended": lambda: notifications_of(
            heartbeats(
                running=4.0,
                idle=45.0,
                straggler_ranks="1",
                blocked_by="signal",
                suspended_processes="1:4242:gpu-3",
                state="running",
            ),
            "run_stalled",
        )[0],
        "node_lost": lambda: notifications_of(lost_node(), "node_lost")[0],
        "digest": lambda: digest._build_digest(
            1, opened, [("loss_spike", "warning", 9), ("kl_blowup", "critical", 1)],
            (opened_case[0].incident,),
        ),
        "test": lambda: _with_context(build_test_notifications(NOW + 100, can_update=False)[0]),
        "held_back": lambda: replace(
            opened, notes=("Held back at step 100, and sent now that nothing suppresses it.",)
        ),
        "acknowledged": lambda: replace(
            first[NotificationReason.ESCALATED],
            notes=("Acknowledged at 2023-11-14 22:15 UTC by ana: looking into it.",),
        ),
    }  # fmt: skip


def _resolved(notification: Notification) -> Notification:
    lead = replace(
        notification.incident, resolved_step=notification.step, resolved_time=notification.time
    )
    return replace(notification, reason=NotificationReason.RESOLVED, incident=lead)


def _with_context(notification: Notification) -> Notification:
    diagnosis, step = notification.diagnosis, notification.last_good_step
    name = notification.incident.key.detector if diagnosis is None else diagnosis.cause
    context = replace(
        CONTEXT,
        runbook_url=CONTEXT.runbook_url.replace("NAME", name),
        checkpoint_path="" if step is None else CONTEXT.checkpoint_path.replace("STEP", str(step)),
    )
    return replace(notification, context=context)
