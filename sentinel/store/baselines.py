"""Trajectories of healthy finished runs, from which later runs of the same configuration start.

`$SENTINEL_HOME/baselines/<id>.json` holds the runs of one configuration: its settings, and of each
run the course and the noise of every signal. The id is a digest of the settings. A file that cannot
be read counts as none, and values out of range are left out: the general priors are used then.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.model.finding import Severity
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.engine import ENDED_SCOPES, Engine, Result
from sentinel.pipeline.run_baselines import BASELINE_SETTINGS
from sentinel.signals.framework_config import TRAINER_SETTINGS, VERL_SETTING_PATHS
from sentinel.stats.baseline import KNOT_SPACING, MAX_KNOTS, WINDOW, TrajectoryPrior
from sentinel.stats.pooled_prior import MIN_KNOTS, pool_priors
from sentinel.transport.replaced_file import replacing

log = logging.getLogger(__name__)

SCHEMA = 1
MAX_RUNS = 8
"""Newest runs of a configuration that are stored."""

MAX_FILE_CHARS = 4 << 20
"""Characters that are read of a file; a longer one is damaged."""

LOCK_ATTEMPTS = 20
LOCK_RETRY_SECONDS = 0.02
"""The agent does not wait longer: the run is not stored, with a warning."""

MIN_POINTS = 64
"""Values of a signal from which on its trajectory is stored."""

MAX_SIGMA_FACTOR = 3.0
"""Noise in units of that of the general prior above which a trajectory is not used: it would hide
any fault."""

MAX_LEVEL = 50.0
"""Largest logarithm of a level, and of the distance travelled."""

MIN_SPACING = KNOT_SPACING / 2
"""Travel between two knots, below which the course may be infinitely steep."""

DAMAGE_ERRORS = (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Errors that a damaged file raises."""

PROJECT_KEYS = ("project", "script", "model")
"""Metadata of which at least one must be known: settings alone do not identify a project."""

_VARYING = {
    "critic_learning_rate", "eval_strategy", "load_best_model_at_end", "logging_nan_inf_filter",
    "nnodes", "num_train_epochs", "output_dir", "save_freq", "save_strategy", "save_total_limit",
    "seed", "test_freq", "total_epochs",
}  # fmt: skip
CONFIGURATION_KEYS = sorted(
    {*PROJECT_KEYS, "framework", "algorithm", "world_size", *TRAINER_SETTINGS, *VERL_SETTING_PATHS}
    - _VARYING
)
"""Metadata that are the configuration of a run; seeds, folders and lengths are not."""

MAX_TIME = 1e11
"""Seconds since the epoch that no run has; a date can be formatted below it."""

_ID_PATTERN = re.compile(r"[0-9a-f]{12}")


class StoredRun(NamedTuple):
    """A healthy finished run: its trajectories by signal, and when it ended (epoch seconds)."""

    run: str
    time: float
    last_step: int
    priors: Mapping[str, TrajectoryPrior]


class StoredBaseline(NamedTuple):
    """The runs of one configuration, oldest first."""

    id: str
    configuration: Mapping[str, str | float]
    runs: tuple[StoredRun, ...]

    def pooled_priors(self) -> dict[str, TrajectoryPrior]:
        """The priors of a further run, by signal."""
        pooled = {
            signal: pool_priors([run.priors[signal] for run in self.runs if signal in run.priors])
            for signal in BASELINE_SETTINGS
        }
        return {signal: prior for signal, prior in pooled.items() if prior is not None}


def configuration_of(metadata: Mapping[str, str | float]) -> dict[str, str | float]:
    """The configuration in the metadata of a run; empty if they do not identify a project."""
    if not any(metadata.get(key) for key in PROJECT_KEYS):
        return {}
    return {key: metadata[key] for key in CONFIGURATION_KEYS if key in metadata}


def baseline_id(configuration: Mapping[str, str | float]) -> str:
    """Digest of a configuration.

    >>> baseline_id({"script": "train.py", "beta": 0.04})
    '964b7b099a4a'
    """
    normalized = {key: _to_text(value) for key, value in sorted(configuration.items())}
    return sha256(json.dumps(normalized).encode()).hexdigest()[:12]


def _to_text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{float(value):.9g}"


@dataclass
class BaselineStore:
    """The files in `directory`, which need not exist."""

    directory: Path

    def load(self, name: str) -> StoredBaseline | None:
        """The baseline with that id; None if there is none that can be read."""
        if not _ID_PATTERN.fullmatch(name):
            return None
        path = self._path(name)
        try:
            with path.open() as file:
                return _from_json(name, json.loads(file.read(MAX_FILE_CHARS)))
        except FileNotFoundError:
            return None
        except DAMAGE_ERRORS as error:
            log.warning("The baseline %s cannot be read and is not used: %s", path, error)
            return None

    def load_all(self) -> list[StoredBaseline]:
        """Every baseline that can be read, by the time of its newest run."""
        found = [each for name in self.names() if (each := self.load(name)) is not None]
        return sorted(found, key=lambda each: max((run.time for run in each.runs), default=0.0))

    def names(self) -> list[str]:
        """The ids of all files, whether they can be read or not."""
        stems = (path.stem for path in self.directory.glob("*.json"))
        return sorted(stem for stem in stems if _ID_PATTERN.fullmatch(stem))

    def add(self, configuration: Mapping[str, str | float], run: StoredRun) -> None:
        """Add a run, or replace an earlier one of that name. Raises OSError."""
        name = baseline_id(configuration)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            stored = self.load(name)
            others = [each for each in stored.runs if each.run != run.run] if stored else []
            runs = [*others, run][-MAX_RUNS:]
            text = json.dumps(baseline_to_dict(StoredBaseline(name, configuration, tuple(runs))))
            with replacing(self._path(name)) as temporary:
                temporary.touch(mode=0o600)
                temporary.write_text(text)

    def forget(self, name: str) -> bool:
        """Delete a baseline; whether there was one."""
        if not _ID_PATTERN.fullmatch(name):
            return False
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for attempt in range(LOCK_ATTEMPTS):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if attempt == LOCK_ATTEMPTS - 1:
                        raise
                    time.sleep(LOCK_RETRY_SECONDS)
            yield
        finally:
            os.close(descriptor)


@dataclass
class BaselineMemory:
    """Gives a run the baselines of alike runs, and stores its own if it was healthy.

    `metadata` are what is known of the run at the beginning. `used` is the file in which the run
    records the baseline that its training started from: an agent that is started again uses the
    same.
    """

    run: str
    engine: Engine
    store: BaselineStore
    metadata: dict[str, str | float] = field(default_factory=dict)
    used: Path | None = None
    is_healthy: bool = True

    def restore(self) -> None:
        """Use the priors that the training started from, if it has started."""
        if self.used is None:
            return
        try:
            stored = _from_json("", json.loads(self.used.read_text()))
        except FileNotFoundError:
            return
        except DAMAGE_ERRORS as error:
            log.warning("The baseline of this run cannot be read and is not used: %s", error)
            return
        self.engine.priors[self.run] = stored.pooled_priors()

    def update(self, result: Result) -> None:
        """Update from one result: choose the baseline at the start, store at the end."""
        notifications = (*result.notifications, *result.case_notifications)
        if any(each.incident.severity is not Severity.INFO for each in notifications):
            self.is_healthy = False
        record = result.record
        if record.rank != WHOLE_RUN:
            return
        if record.event in ENDED_SCOPES:
            self._forget_used()
        elif record.event in {Event.START, Event.METADATA}:
            stated: dict[str, str | float] = {**record.attributes, **record.values}
            self.metadata |= stated
            # Another training that states no settings may have others than the one before it.
            has_settings = not stated.keys().isdisjoint(CONFIGURATION_KEYS)
            is_chosen = bool(self.engine.baselines.get(self.run))
            if not is_chosen and (record.event is Event.START or has_settings):
                self._choose()
        elif record.event is Event.STOP and record.attributes.get("outcome") == "finished":
            self.add_run(record.step, record.time)

    def _choose(self) -> None:
        if self.used is not None and self.used.exists():
            self.restore()
            return
        configuration = configuration_of(self.metadata)
        stored = self.store.load(baseline_id(configuration)) if configuration else None
        if stored is None:
            return
        # A log that is replayed again is no evidence for itself.
        stored = stored._replace(runs=tuple(run for run in stored.runs if run.run != self.run))
        self.engine.priors[self.run] = stored.pooled_priors()
        if self.used is not None:
            try:
                self.used.write_text(json.dumps(baseline_to_dict(stored)))
            except OSError as error:
                log.warning("The baseline of this run cannot be recorded: %s", error)

    def _forget_used(self) -> None:
        """Delete the record of the baseline of the training, or of the stage, that is over."""
        if self.used is None:
            return
        try:
            self.used.unlink(missing_ok=True)
        except OSError as error:
            log.warning("The baseline of the last training cannot be deleted: %s", error)
            self.used = None

    def add_run(self, last_step: int, time: float) -> bool:
        """Store the trajectories of the run as far as it is healthy; whether there were any."""
        configuration = configuration_of(self.metadata)
        baselines = self.engine.baselines.get(self.run)
        if not configuration or baselines is None or not self.is_healthy:
            return False
        incidents = self.engine.incident_book.open_incidents.values()
        if any(
            each.key.run == self.run and each.severity is not Severity.INFO for each in incidents
        ):
            return False  # its last values may be those of a fault
        priors = {
            signal: prior
            for signal, baseline in baselines.by_signal.items()
            if baseline.count >= MIN_POINTS
            and (prior := baseline.export()) is not None
            and _is_usable(signal, prior)
        }
        if not priors:
            return False
        try:
            self.store.add(configuration, StoredRun(self.run, time, last_step, priors))
        except OSError as error:
            log.warning("The baseline of this run cannot be stored: %s", error)
            return False
        return True


def _is_usable(signal: str, prior: TrajectoryPrior) -> bool:
    """Whether a trajectory is plausible: a damaged or odd one must not hide a fault."""
    settings = BASELINE_SETTINGS.get(signal)
    if settings is None or not settings.is_log or not MIN_KNOTS <= len(prior.course) <= MAX_KNOTS:
        return False
    numbers = [prior.sigma, prior.weight, *(number for knot in prior.course for number in knot)]
    return (
        all(map(isfinite, numbers))
        and settings.min_sigma <= prior.sigma <= MAX_SIGMA_FACTOR * settings.prior.sigma
        and 0.0 < prior.weight <= WINDOW
        and all(abs(level) <= MAX_LEVEL for _, level in prior.course)
        and all(abs(travel) <= MAX_LEVEL for travel, _ in prior.course)
        and all(after - before > MIN_SPACING for (before, _), (after, _) in pairwise(prior.course))
    )


def baseline_to_dict(baseline: StoredBaseline) -> dict[str, Any]:
    """The content of the file of a baseline."""
    return {
        "schema": SCHEMA,
        "configuration": dict(baseline.configuration),
        "runs": [
            {
                "run": run.run,
                "time": run.time,
                "last_step": run.last_step,
                "signals": {
                    signal: {"sigma": prior.sigma, "weight": prior.weight, "course": prior.course}
                    for signal, prior in run.priors.items()
                },
            }
            for run in baseline.runs
        ],
    }


def _from_json(name: str, body: Any) -> StoredBaseline:
    if body["schema"] != SCHEMA:
        raise ValueError(f"its schema is {body['schema']!r}, not {SCHEMA}")
    runs = tuple(
        StoredRun(
            str(run["run"]), float(run["time"]), int(run["last_step"]), _priors(run["signals"])
        )
        for run in body["runs"][-MAX_RUNS:]
    )
    if not all(abs(run.time) < MAX_TIME for run in runs):
        raise ValueError("the time of a run is out of range")
    return StoredBaseline(name, dict(body["configuration"]), runs)


def _priors(signals: Mapping[str, Any]) -> dict[str, TrajectoryPrior]:
    priors = {
        signal: TrajectoryPrior(
            sigma=float(values["sigma"]),
            weight=float(values["weight"]),
            course=tuple((float(travel), float(level)) for travel, level in values["course"]),
        )
        for signal, values in signals.items()
    }
    return {signal: prior for signal, prior in priors.items() if _is_usable(signal, prior)}
