"""Replays runs with several settings, and counts what each would have sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sentinel.backtest.marks import NO_MARKS, RunMarks, StepRange, read_marks
from sentinel.backtest.run_replay import RunFindings, SentNotification, replay_run
from sentinel.backtest.run_sources import FoundRuns, RunSource, SkippedRun
from sentinel.backtest.variants import Variant
from sentinel.config.settings import Settings
from sentinel.model.nearest_name import nearest_hint
from sentinel.pipeline.parallel import map_in_processes
from sentinel.readers.log_file import read_error_text

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BacktestRun:
    """A run with what a replay found with each of the variants, in their order.

    `days` is how long it trained, in days; 0 if that is not known. `is_healthy` is whether the user
    states that nothing was wrong with it, `is_faulty` whether others were named healthy and not
    this one; `marks` are those of its cases.
    """

    name: str
    days: float
    findings: Sequence[RunFindings]
    is_healthy: bool = False
    is_faulty: bool = False
    marks: RunMarks = NO_MARKS

    @property
    def is_judged(self) -> bool:
        """Whether it is known which of its notifications are false."""
        return self.is_healthy or self.marks.is_complete

    @property
    def faults(self) -> tuple[StepRange, ...]:
        """What is to be found: the useful cases; without any, one if it is faulty and not judged.

        Of any other run it is not known whether there is something to be found.
        """
        if self.is_healthy:
            return ()
        is_unknown = self.is_faulty and not self.marks.is_complete
        return self.marks.useful_steps or (StepRange(),) * is_unknown

    def notification_count(self, variant: int) -> int:
        """Notifications with the variant of that number."""
        return len(self.findings[variant].notifications)

    def false_notifications(self, variant: int) -> list[SentNotification]:
        """Those of a judged run that are of none of its faults."""
        if not self.is_judged:
            return []
        sent = self.findings[variant].notifications
        return [each for each in sent if not any(each.step in fault for fault in self.faults)]

    def found_count(self, variant: int) -> int:
        """The faults of which there is a notification with that variant."""
        return sum(share is not None for share in self._shares(variant))

    def found_after(self, variant: int) -> float:
        """Share of the run before the first notification of each fault, added up; 1 without any."""
        return sum(1.0 if share is None else share for share in self._shares(variant))

    def _shares(self, variant: int) -> Iterator[float | None]:
        findings = self.findings[variant]
        for fault in self.faults:
            step = fault.first_of(findings.notifications)
            known = None if step is None else step / max(1, findings.last_step)
            yield None if known is None else min(1.0, max(0.0, known))


@dataclass(frozen=True, slots=True)
class Backtest:
    """The `runs` with what was found with each of the `variants`; the first are the current ones.

    `skipped` are the runs that could not be replayed.
    """

    variants: Sequence[Variant]
    runs: list[BacktestRun] = field(default_factory=list)
    skipped: list[SkippedRun] = field(default_factory=list)


def run_backtest(  # noqa: PLR0913 - each is an option of the command
    found: FoundRuns,
    variants: Sequence[Variant],
    *,
    healthy: Collection[str] = (),
    step_seconds: float | None = None,
    jobs: int = 1,
    progress: Progress = lambda _done, _total: None,
) -> Backtest:
    """Replay each run with each variant, `jobs` at a time. Nothing is sent, stored or changed.

    `healthy` are names of runs; if there are any, the others are faulty. `step_seconds` is the
    duration of a step of runs without times. A run whose process is killed is skipped.
    """
    backtest = Backtest(variants, skipped=[*found.skipped])
    tasks = [_Task(run, variant.settings) for run in found.runs for variant in variants]
    answers = map_in_processes(_replay, tasks, jobs)
    done = 0
    for run in found.runs:
        of_run = []
        for _ in variants:
            progress(done, len(tasks))
            of_run.append(next(answers))
            done += 1
        findings = [each for each in of_run if isinstance(each, RunFindings)]
        problem = next((str(each) for each in of_run if not isinstance(each, RunFindings)), None)
        if problem is not None:
            backtest.skipped.append(SkippedRun(run.name, run.path, problem))
            continue
        days = findings[0].days(step_seconds)
        is_healthy = run.name in healthy
        is_faulty = bool(healthy) and not is_healthy
        marks = read_marks(run.path)
        backtest.runs.append(BacktestRun(run.name, days, findings, is_healthy, is_faulty, marks))
    return backtest


@dataclass(frozen=True, slots=True)
class _Task:
    run: RunSource
    settings: Settings


def _replay(task: _Task) -> RunFindings | str:
    """What was found, or why the run cannot be read."""
    try:
        return replay_run(task.run.path, task.settings)
    except (OSError, ValueError) as error:
        return read_error_text(error)
    except sqlite3.Error as error:
        return str(error)


def match_names(patterns: Sequence[str], names: Sequence[str]) -> set[str]:
    """The names that the patterns match, such as "good-*". Raises ValueError if one matches none.

    >>> sorted(match_names(["good-*", "b"], ["good-1", "good-2", "b", "c"]))
    ['b', 'good-1', 'good-2']
    """
    matched = set[str]()
    for pattern in patterns:
        names_of_pattern = [name for name in names if fnmatchcase(name, pattern)]
        if not names_of_pattern:
            hint = nearest_hint(pattern, names)
            raise ValueError(f"{pattern!r} matches none of the runs.{hint}")
        matched.update(names_of_pattern)
    return matched
