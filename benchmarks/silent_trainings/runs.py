"""Runs of trainings, each rank in a process of its own, and what is sent about them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from support.recorded_rings import read_rings

import sentinel
from sentinel.config.settings import load_settings
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import CHECK, PROBLEM_KEY, Event, Record
from sentinel.pipeline.pipeline import build
from silent_trainings.case import Case
from silent_trainings.loops import CHECKPOINT_VARIABLE, write_checkpoint

TIMEOUT_SECONDS = 600
"""A rank that takes longer is ended."""
SICK, UNCHECKED, HEALTHY = KINDS = ("sick", "unchecked", "healthy")


@dataclass
class Outcome:
    """What was sent about one run: the step of each reason, and its first message.

    `switched_off` are the checks in which an error occurred, `failure` how the training failed.
    """

    reasons: dict[str, int] = field(default_factory=dict)
    message: str = ""
    switched_off: list[str] = field(default_factory=list)
    failure: str = ""


@dataclass(frozen=True)
class Job:
    """One run of a training, in a folder of its own."""

    name: str
    case: Case
    kind: str
    folder: Path

    def start(self) -> list[int]:
        """Start a process for each rank; their ids."""
        self.folder.mkdir()
        return [self._fork(rank) for rank in range(self.case.ranks)]

    def _fork(self, rank: int) -> int:
        sys.stdout.flush()
        return os.fork() or self._train(rank)

    def _train(self, rank: int) -> NoReturn:
        code = 1
        try:
            signal.alarm(TIMEOUT_SECONDS)
            log = os.open(self.folder / f"{rank}.log", os.O_CREAT | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ |= {
                "SENTINEL_HOME": str(self.folder / "home"),
                "SENTINEL_RUNTIME_DIR": str(self.folder / "rings"),
            }
            if self.case.ranks > 1:
                self._join(rank)
            torch.set_num_threads(1)
            torch.manual_seed(rank)
            with sentinel.monitor(run=self.name, agent=False, checks=self.kind != UNCHECKED):
                self.case.train(sick=self.kind != HEALTHY)
            if self.case.ranks > 1:
                dist.barrier()
                # Gloo's threads may still be at work.
                time.sleep(0.2)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _join(self, rank: int) -> None:
        """Set what a launcher sets, and join the process group."""
        ranks, store = self.case.ranks, f"file://{self.folder}/store"
        for name, number in (("RANK", rank), ("WORLD_SIZE", ranks)):
            os.environ |= {name: str(number), f"LOCAL_{name}": str(number)}
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)

    def outcome(self, codes: Sequence[int]) -> Outcome:
        """What the detectors find in the records of all ranks, whose exit codes are these."""
        if any(codes):
            rank = next(rank for rank, code in enumerate(codes) if code)
            lines = (self.folder / f"{rank}.log").read_text().splitlines() or ["ended"]
            return Outcome(failure=f"rank {rank}: {lines[-1]}")
        os.environ["SENTINEL_RUNTIME_DIR"] = str(self.folder / "rings")
        records = [each for of_rank in read_rings().values() for each in of_rank]
        shutil.rmtree(self.folder)
        return judge(sorted(records, key=lambda each: each.time))


def write_checkpoint_into(folder: Path) -> None:
    """Write the weights that trainings load, in a process of its own."""
    os.environ[CHECKPOINT_VARIABLE] = str(folder / "checkpoint.pt")
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        write_checkpoint(os.environ[CHECKPOINT_VARIABLE])
        os._exit(0)
    os.waitpid(child, 0)


def judge(records: Sequence[Record]) -> Outcome:
    """What is sent about these records."""
    pipeline, problems, outcome = build(load_settings()), dict[str, str](), Outcome()
    for record in records:
        if record.event is Event.METADATA:
            outcome.switched_off += [key for key in record.attributes if "/check_" in key]
        for result in pipeline.process(record):
            if result.record.event is CHECK:
                problem = result.record.attributes.get(PROBLEM_KEY)
                problems |= {name: f"/{problem}" for name in result.findings if problem}
            for notification in result.case_notifications:
                add(notification, problems, outcome)
    return outcome


def add(notification: Notification, problems: dict[str, str], outcome: Outcome) -> None:
    """Add what a notification names, if it is sent."""
    lead = notification.incident
    if notification.reason is NotificationReason.RESOLVED or lead.severity is Severity.INFO:
        return
    outcome.message = outcome.message or lead.finding.summary
    for each in notification.incidents:
        if each.severity is not Severity.INFO:
            reason = each.key.detector + problems.get(each.key.detector, "")
            outcome.reasons.setdefault(reason, each.opened_step)
    if notification.diagnosis is not None:
        outcome.reasons.setdefault(notification.diagnosis.cause, notification.step)


def run(jobs: Iterable[Job], at_once: int) -> Iterator[tuple[Job, Outcome]]:
    """Each job with its outcome, when it ended."""
    waiting, running = [*reversed([*jobs])], dict[int, tuple[Job, int]]()
    codes: dict[Job, dict[int, int]] = {}
    while waiting or running:
        while waiting and len(codes) < at_once:
            job = waiting.pop()
            codes[job] = {}
            running |= {child: (job, rank) for rank, child in enumerate(job.start())}
        child, status = os.wait()
        job, rank = running.pop(child)
        codes[job][rank] = os.waitstatus_to_exitcode(status)
        if len(codes[job]) == job.case.ranks:
            ended = codes.pop(job)
            yield job, job.outcome([ended[rank] for rank in sorted(ended)])
