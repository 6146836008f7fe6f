"""What is computed from the loss on kept batches while a model trains: surface and sharpness.

A measurement never breaks the training: an error is written to stderr once, with its remedy, and
the measurement is then off. It takes at most its share of the wall time, which it prints
beforehand.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import ceil
from typing import Any, Literal

import torch

import sentinel
from sentinel.client import guard
from sentinel.client.session import CurrentSession
from sentinel.insight.callbacks.time_budget import TimeBudget
from sentinel.insight.measure.model_state import preserved
from sentinel.insight.measure.parameters import Selection, select_parameters
from sentinel.insight.measure.rank_exchange import RankExchange
from sentinel.insight.measure.sharpness import sharpness
from sentinel.insight.measure.time_limit import OutOfTimeError
from sentinel.insight.surface.loss_surface import (
    ARROWS,
    EVALUATIONS_1D,
    EVALUATIONS_2D,
    loss_surface,
)
from sentinel.store.artifact import current_run_directory, save_artifact

DEFAULT_SHARE = 0.05
"""Share of the wall time of a training that a callback takes at most."""
MAX_RESULTS = 64
"""Results that a callback keeps in memory, the newest."""
_MIN_EVALUATIONS = {1: 9, 2: 49}
"""With fewer evaluations a surface shows nothing, by dimensions."""
_DEFAULT_EVALUATIONS = {1: EVALUATIONS_1D, 2: EVALUATIONS_2D}
_GRADIENT_COST = 3.0
"""A gradient costs as much as so many evaluations of the loss."""
_PRODUCT_COST = 6.0
"""A product of the Hessian and a vector costs as much as so many evaluations."""
_TYPICAL_PRODUCTS = 25
"""Products that the leading eigenvalue takes, until it was computed once."""

_INCIDENT_PART = 5
"""By default so many times as often while an incident is firing."""
_MIN_SNAPSHOTS = 2
_SAFETY = 1.3
"""Estimated times are multiplied by this, so that the share is kept."""
_OWN = frozenset(
    {
        *("model", "loss_fn", "batch", "optimizer", "save", "cache", "step"),
        *("process_group", "max_seconds"),
    }
)
"""Arguments of the functions that the callbacks give."""

LossFunction = Callable[[Any, Any], Any]
"""Model and batch -> scalar tensor, or tensor and metrics."""


class KeptLoss:
    """A loss that can be computed again for other weights, on at most `max_batches` batches.

    `is_reporting` is whether this rank writes messages and stores results.
    """

    def __init__(
        self, max_batches: int, newest: bool, loss_fn: LossFunction | None, *, is_reporting: bool
    ) -> None:
        self._max_batches, self._newest, self._loss_fn = max_batches, newest, loss_fn
        self.is_reporting = is_reporting
        self.batches: list[Any] = []
        """The kept batches; empty if there are none yet."""
        self.learning_rates: list[float] = []
        """By parameter group, those of the last step; empty before the first."""

    @property
    def model(self) -> Any:
        """The model whose weights are varied."""
        raise NotImplementedError

    @property
    def optimizer(self) -> Any:
        """The optimizer of these weights."""
        raise NotImplementedError

    def __call__(self, model: Any, batch: Any) -> Any:
        """The loss as a scalar tensor."""
        raise NotImplementedError

    def isolated(self) -> AbstractContextManager[None]:
        """Undo at its end what calls of the loss change in the trainer."""
        raise NotImplementedError

    def keep_learning_rates(self) -> None:
        """Keep the learning rates of this step, before the schedule moves them on."""
        groups = getattr(self.optimizer, "param_groups", ())
        # Some are tensors, which the schedule changes in place.
        self.learning_rates = [float(group["lr"]) for group in groups]


class Schedule:
    """At which steps something is computed: every `every` steps, at each save, and at the end.

    While an incident is firing, `every_in_incident` steps take the place of `every`; "auto" is a
    fifth of it, None changes nothing. Raises ValueError if nothing is ever due, or if a number of
    steps is not positive.
    """

    def __init__(
        self,
        every: int | None,
        *,
        on_save: bool,
        at_end: bool,
        every_in_incident: int | Literal["auto"] | None = None,
    ) -> None:
        if every is not None and (not isinstance(every, int) or every < 1):
            raise ValueError(f"every is {every!r}: give a number of steps, or None.")
        if every_in_incident == "auto":
            can_be_denser = every is not None and every > 1
            every_in_incident = max(1, (every or 0) // _INCIDENT_PART) if can_be_denser else None
        if every_in_incident is not None and (
            not isinstance(every_in_incident, int) or every_in_incident < 1
        ):
            raise ValueError(
                f"every_in_incident is {every_in_incident!r}: give a number of steps, or None."
            )
        if every is None and every_in_incident is None and not on_save and not at_end:
            raise ValueError("Give every=, on_save=True or at_end=True: otherwise nothing is due.")
        self.every, self.on_save, self.at_end = every, on_save, at_end
        self.every_in_incident = every_in_incident

    def is_due(self, step: int) -> bool:
        """Whether something is due at the end of this step, without saves and the end."""
        return self.every is not None and step > 0 and step % self.every == 0

    def is_due_in_incident(self, step: int) -> bool:
        """The same while an incident is firing."""
        stride = self.every_in_incident
        return stride is not None and step > 0 and step % stride == 0

    def __str__(self) -> str:
        parts = []
        if self.every is not None:
            parts = [_stride_text(self.every)]
        if self.every_in_incident is not None:
            parts.append(f"{_stride_text(self.every_in_incident)} while an incident is firing")
        parts += ["at each save"] if self.on_save else []
        parts += ["at the end"] if self.at_end else []
        return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


class LossMeasurement:
    """Computes something on a schedule within a share of the training time. Never raises.

    Every rank takes part, with its own batch. What depends on clocks is agreed on: the slowest rank
    decides, so that all ranks compute the same.
    """

    title = ""
    """What is computed, for messages."""

    def __init__(
        self, schedule: Schedule, max_share: float | None, settings: dict[str, Any]
    ) -> None:
        self.schedule, self._settings = schedule, settings
        self.budget = TimeBudget(max_share)
        self.results: deque[Any] = deque(maxlen=MAX_RESULTS)
        self.is_off = False
        self._computed_step: int | None = None
        self._least_seconds: float | None = None
        """Expected time of the least result; None before the first estimate."""
        self._first_step = self._retry_step = 0
        """Step before which a computation that was put off is not tried again; 0 if none was."""
        self._has_said_late = False

    def start(self, step: int, loss: KeptLoss) -> None:
        """The training starts after this step."""
        self.budget.start()
        self._first_step, self._retry_step, self._computed_step = step, 0, None
        if loss.is_reporting:
            share = self.budget.max_share
            limit = "without a time limit" if share is None else f"within {share:.0%} of its time"
            print_message(f"{self.title} of this training {self.schedule}, {limit}.")
        try:
            # A wrong choice of parameters is reported at once.
            select_parameters(loss.model, self._settings.get("parameters"))
        except Exception as error:
            self.turn_off(error, is_reporting=loss.is_reporting)

    def end_step(self, step: int, loss: KeptLoss) -> None:
        """Compute what is due at the end of a step, or was put off."""
        if step >= self._retry_step if self._retry_step else self._is_due(step, loss):
            self.run(step, loss)

    def _is_due(self, step: int, loss: KeptLoss) -> bool:
        if self.schedule.is_due(step):
            return True
        if self.is_off or not loss.batches or not self.schedule.is_due_in_incident(step):
            return False
        # An incident may be known to the agent of one node only, and all ranks have to take part.
        with self._guarded(step, loss):
            return any(gather_from_ranks(_firing_incidents() > 0))
        return False

    def run(self, step: int, loss: KeptLoss, *, is_last: bool = False) -> None:
        """Compute now, if the time allows it."""
        if self.is_off or not loss.batches or step == self._computed_step:
            return
        with self._guarded(step, loss):
            self._run(step, loss, is_last=is_last)

    @contextmanager
    def _guarded(self, step: int, loss: KeptLoss) -> Iterator[None]:
        """Count the time of the block as spent, and turn the measurement off if it raises."""
        with self.budget.spend():
            try:
                yield
            except Exception as error:
                self.turn_off(error, f" at step {step:,}", is_reporting=loss.is_reporting)

    def turn_off(self, error: Exception, where: str = "", *, is_reporting: bool = True) -> None:
        """Report why there are no more results."""
        self.is_off = True
        guard.on_swallowed_error(error)
        if is_reporting:
            print_message(
                f"no {self.title}{where}: {type(error).__name__}: {_sentence(error)} "
                f"{remedy(error)}Training goes on as before, without further {self.title}."
            )

    def _run(self, step: int, loss: KeptLoss, *, is_last: bool) -> None:
        if self._least_seconds is None:
            with loss.isolated():
                self._least_seconds = self._estimate_seconds(loss)
        available = self.budget.available_seconds()
        mine = {
            "needed": self._least_seconds,
            "available": available,
            "wall": self.budget.wall_seconds(),
        }
        everyone = gather_from_ranks(mine)
        needed = max(each["needed"] for each in everyone)
        if available is not None:
            available = min(each["available"] for each in everyone)
        if available is not None and needed > available:
            share = self.budget.max_share or 1.0
            wait = (needed - available) / share
            seconds_per_step = max(each["wall"] for each in everyone) / max(
                1, step - self._first_step
            )
            self._retry_step = step + max(1, ceil(wait / seconds_per_step))
            if loss.is_reporting and (is_last or not self._has_said_late):
                self._has_said_late = True
                print_message(self._late_message(step, needed, available, is_last=is_last))
            return
        self._retry_step = 0
        try:
            with loss.isolated():
                result = self._compute(step, loss, needed, available)
        except OutOfTimeError:
            # The estimate was wrong: the next attempt waits until there is twice the time.
            self._least_seconds = 2.0 * (available or needed)
            if loss.is_reporting:
                print_message(
                    f"no {self.title} at step {step:,}: it takes longer than the "
                    f"{duration_text(available or needed)} that were left of its share of the "
                    "training time. max_share=None sets no limit."
                )
            return
        self._computed_step = step
        self.results.append(result)
        if loss.is_reporting:
            self._publish(result, step)

    def _estimate_seconds(self, loss: KeptLoss) -> float:
        """The least time that a result takes, from an evaluation of the loss."""
        raise NotImplementedError

    def _compute(self, step: int, loss: KeptLoss, needed: float, seconds: float | None) -> Any:
        """The result, which needs `needed` seconds at least and takes `seconds` at most."""
        raise NotImplementedError

    def _publish(self, result: Any, step: int) -> None:  # noqa: ARG002 - of subclasses
        """Store the result with the run, and log what is a signal."""
        directory = current_run_directory()
        if directory is not None:
            save_artifact(directory, result)

    def _late_message(self, step: int, needed: float, available: float, *, is_last: bool) -> str:
        share = f"{self.budget.max_share or 1.0:.0%}"
        times = (
            f"it takes {duration_text(needed)} at least, and {duration_text(available)} are left "
            f"of {share} of the training time"
        )
        if is_last:
            return f"no {self.title} at step {step:,}: {times}. max_share=None sets no limit."
        return f"{self.title} put off at step {step:,}: {times}."


class SurfaceMeasurement(LossMeasurement):
    """The loss surface; `settings` are arguments of `sentinel.insight.loss_surface`.

    Raises TypeError for an unknown one.
    """

    title = "loss surface"

    def __init__(
        self,
        schedule: Schedule,
        max_share: float | None,
        settings: Mapping[str, Any],
        *,
        sharpness: bool = False,
        snapshots: int = 0,
    ) -> None:
        checked = check_settings(settings, loss_surface, _OWN)
        super().__init__(schedule, max_share, {"progress": None, **checked})
        self._snapshots = None
        if snapshots:
            self._snapshots = WeightSnapshots(snapshots, self._settings.get("parameters"))
        self._settings |= {"save": False, "cache": False}
        self._dimensions = int(self._settings.get("dimensions", 2))
        self._sharpness = sharpness
        directions, path = self._settings.get("directions"), self._settings.get("trajectory")
        if isinstance(directions, str) and directions == "pca" and not (snapshots or path):
            raise ValueError(
                'directions="pca" needs a path of the weights: give snapshots=20, or trajectory= '
                "the folder of earlier checkpoints."
            )

    def start(self, step: int, loss: KeptLoss) -> None:
        """The training starts after this step."""
        super().start(step, loss)
        self._take_snapshot(step, loss)

    def end_step(self, step: int, loss: KeptLoss) -> None:
        """Compute what is due at the end of a step, or was put off."""
        self._take_snapshot(step, loss)
        super().end_step(step, loss)

    def _take_snapshot(self, step: int, loss: KeptLoss) -> None:
        if self._snapshots is None or self.is_off:
            return
        with self._guarded(step, loss):
            self._snapshots.add(step, loss.model)

    def _estimate_seconds(self, loss: KeptLoss) -> float:
        return _forward_seconds(loss) * _SAFETY * self._least_evaluations

    @property
    def _least_evaluations(self) -> int:
        return min(self._wanted, _MIN_EVALUATIONS[self._dimensions]) + self._extra_cost

    def _compute(self, step: int, loss: KeptLoss, needed: float, seconds: float | None) -> Any:
        each = needed / self._least_evaluations
        count, arrows = self._wanted, self._arrows_cost
        if seconds is not None:
            allowed = int(seconds / each)
            # Arrows are left out where they would take more than the surface itself.
            arrows = arrows if allowed > 2 * arrows else 0
            least = _MIN_EVALUATIONS[self._dimensions]
            count = min(count, max(allowed - arrows - self._extra_cost, least))
        if loss.is_reporting:
            duration = duration_text((count + arrows + self._extra_cost) * each)
            limit = f"up to {count:,} evaluations, about {duration}"
            print_message(f"{self.title} at step {step:,}: {limit}.")
        given = {}
        if self._snapshots is not None:
            given["trajectory"] = [*self._snapshots.weights.items()]
        surface = loss_surface(
            loss.model,
            loss,
            loss.batches,
            optimizer=loss.optimizer if self._sharpness else None,
            process_group=_all_ranks(),
            **self._settings
            | {"max_evaluations": count, "arrows": arrows > 0, "step": step}
            | {"max_seconds": seconds}
            | given,
        )
        total = surface.evaluations + arrows + self._extra_cost
        # The time of gradients is spread over all evaluations.
        self._least_seconds = surface.seconds / max(1, total) * self._least_evaluations
        return surface

    @property
    def _arrows_cost(self) -> int:
        """What the field of arrows costs, in evaluations."""
        has_arrows = self._dimensions > 1 and self._settings.get("arrows", True)
        return int(_GRADIENT_COST * ARROWS**2) if has_arrows else 0

    @property
    def _extra_cost(self) -> int:
        """What directions and sharpness cost, in evaluations."""
        kinds = (self._settings.get("directions") == "hessian") + self._sharpness
        return int(kinds * _PRODUCT_COST * _TYPICAL_PRODUCTS)

    @property
    def _wanted(self) -> int:
        given = self._settings.get("max_evaluations")
        return int(given or _DEFAULT_EVALUATIONS[self._dimensions])

    def _publish(self, result: Any, step: int) -> None:
        super()._publish(result, step)
        if result.sharpness is not None:
            _log_sharpness(result.sharpness, step)


class WeightSnapshots:
    """Copies of the chosen weights in host memory, at most `count`, evenly over the steps so far.

    When there are too many, every other one is dropped and from then on every other step is kept.
    Raises ValueError if `count` is below 2.
    """

    def __init__(self, count: int, parameters: Selection) -> None:
        if count < _MIN_SNAPSHOTS:
            raise ValueError(f"snapshots is {count}: a path needs at least 2; 0 keeps none.")
        self._count, self._parameters, self._stride = count, parameters, 1
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        """By step, the weights by name."""

    def add(self, step: int, model: Any) -> None:
        """Keep the weights as they are now, if it is time."""
        if step in self.weights or step % self._stride:
            return
        chosen = select_parameters(model, self._parameters)
        for name, each in chosen.items():
            if hasattr(each, "placements"):
                raise TypeError(
                    f"{name} is sharded over ranks, of which no snapshots are kept: leave out "
                    "snapshots=, and give trajectory= the folder of the checkpoints."
                )
        self.weights[step] = {
            name: each.detach().to("cpu", copy=True) for name, each in chosen.items()
        }
        if len(self.weights) > self._count:
            self._stride *= 2
            kept = {at: each for at, each in self.weights.items() if at % self._stride == 0}
            self.weights = kept


class SharpnessMeasurement(LossMeasurement):
    """The leading eigenvalue of the Hessian; `settings` are arguments of `insight.sharpness`.

    Raises TypeError for an unknown one.
    """

    title = "sharpness"

    def __init__(
        self, schedule: Schedule, max_share: float | None, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(schedule, max_share, check_settings(settings, sharpness, _OWN))

    def _estimate_seconds(self, loss: KeptLoss) -> float:
        return _forward_seconds(loss) * _PRODUCT_COST * _TYPICAL_PRODUCTS * _SAFETY

    def _compute(self, step: int, loss: KeptLoss, needed: float, seconds: float | None) -> Any:
        if loss.is_reporting and not self.results:
            print_message(f"{self.title} at step {step:,}: about {duration_text(needed)}.")
        result = sharpness(
            loss.model,
            loss,
            loss.batches,
            optimizer=loss.optimizer,
            step=step,
            process_group=_all_ranks(),
            max_seconds=seconds,
            **self._settings,
        )
        self._least_seconds = result.seconds * _SAFETY
        return result

    def _publish(self, result: Any, step: int) -> None:
        _log_sharpness(result.to_json(), step)


class MeasurementCallback:
    """What the callbacks of every framework have that run a measurement on kept batches."""

    def __init__(
        self,
        measurement: LossMeasurement,
        batches: int,
        newest: bool | None,
        loss_fn: LossFunction | None,
    ) -> None:
        super().__init__()
        if not isinstance(batches, int) or batches < 1:
            raise ValueError(f"batches is {batches!r}: give a number of micro-batches, at least 1.")
        self._measurement = measurement
        self._options = (batches, newest, loss_fn)
        self._loss: Any = None

    @property
    def results(self) -> list[Any]:
        """What was computed, the oldest first; at most 64."""
        return [*self._measurement.results]

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, which belongs to no trainer yet."""
        return self.__dict__ | {"_loss": None}

    def _begin(self, step: int, make_loss: Callable[[], KeptLoss]) -> None:
        """A training starts after this step; without its loss, nothing is measured."""
        self._loss = None
        try:
            self._loss = make_loss()
        except Exception as error:
            self._measurement.turn_off(error)
        else:
            self._measurement.start(step, self._loss)

    def _keep_learning_rates(self) -> None:
        """Keep the learning rates of this step."""
        if self._loss is not None:
            self._loss.keep_learning_rates()

    def _finish(self, step: int) -> None:
        """The training ends: compute, if that is wanted."""
        if self._loss is not None and self._measurement.schedule.at_end:
            self._measurement.run(step, self._loss, is_last=True)
        self._loss = None


class SurfaceArguments(MeasurementCallback):
    """The arguments of a callback that computes loss surfaces."""

    def __init__(  # noqa: PLR0913 - keyword arguments with defaults
        self,
        *,
        every: int | None = None,
        every_in_incident: int | Literal["auto"] | None = "auto",
        on_save: bool = False,
        at_end: bool = True,
        max_share: float | None = DEFAULT_SHARE,
        batches: int = 1,
        newest: bool | None = None,
        loss_fn: LossFunction | None = None,
        sharpness: bool = False,
        snapshots: int = 0,
        **surface: Any,
    ) -> None:
        schedule = Schedule(
            every, on_save=on_save, at_end=at_end, every_in_incident=every_in_incident
        )
        measurement = SurfaceMeasurement(
            schedule, max_share, surface, sharpness=sharpness, snapshots=snapshots
        )
        super().__init__(measurement, batches, newest, loss_fn)


class SharpnessArguments(MeasurementCallback):
    """The arguments of a callback that computes the sharpness."""

    def __init__(  # noqa: PLR0913 - keyword arguments with defaults
        self,
        *,
        every: int | None = None,
        every_in_incident: int | Literal["auto"] | None = "auto",
        on_save: bool = False,
        at_end: bool = True,
        max_share: float | None = DEFAULT_SHARE,
        batches: int = 1,
        newest: bool | None = None,
        loss_fn: LossFunction | None = None,
        **sharpness: Any,
    ) -> None:
        schedule = Schedule(
            every, on_save=on_save, at_end=at_end, every_in_incident=every_in_incident
        )
        measurement = SharpnessMeasurement(schedule, max_share, sharpness)
        super().__init__(measurement, batches, newest, loss_fn)


def gather_from_ranks(value: Any) -> list[Any]:
    """What each rank of the job passed; the value alone in one process.

    Raises RuntimeError if a rank does not answer.
    """
    return RankExchange(_all_ranks()).gather(value)


def _all_ranks() -> Any:
    """The process group of the job; None in one process."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.group.WORLD
    return None


def _firing_incidents() -> int:
    """How many incidents of the monitored run are firing, as its agent published."""
    recorder = CurrentSession.recorder
    return 0 if recorder is None else recorder.commands.firing_incidents


def _stride_text(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps} steps"


def _log_sharpness(values: Mapping[str, Any], step: int) -> None:
    eigenvalues, ratio = values.get("eigenvalues") or [], values.get("ratio")
    name = "preconditioned_sharpness" if values.get("preconditioned") else "sharpness"
    known = {name: eigenvalues[0] if eigenvalues else None, "sharpness_ratio": ratio}
    sentinel.log({name: each for name, each in known.items() if each is not None}, step=step)


def check_settings(
    settings: Mapping[str, Any], function: Callable[..., Any], own: Iterable[str]
) -> dict[str, Any]:
    """The arguments of a function, of which a callback gives `own` itself.

    Raises TypeError for an unknown one.
    """
    known = {*inspect.signature(function).parameters} - {*own}
    for each in settings:
        if each not in known:
            near = difflib.get_close_matches(each, known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; known are {sorted(known)}."
            raise TypeError(f"unknown argument {each!r}{hint}")
    return dict(settings)


def _forward_seconds(loss: KeptLoss) -> float:
    """How long one evaluation takes, measured at the current weights."""
    with preserved(loss.model), torch.no_grad():
        loss.model.eval()
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            for batch in loss.batches:
                float(loss(loss.model, batch))
            times.append(time.perf_counter() - begin)
    return min(times)


def duration_text(seconds: float) -> str:
    """A duration in one unit.

    >>> duration_text(0.234), duration_text(12.3), duration_text(600.0)
    ('0.2 s', '12 s', '10 min')
    """
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"


def remedy(error: Exception) -> str:
    """What to do about an error of a measurement; empty if its message states that itself."""
    name, text = type(error).__name__, str(error).lower()
    if "outofmemory" in name.lower() or "out of memory" in text:
        return 'Choose fewer weights, such as parameters="*lora*", or a smaller batch. '
    if "not implemented" in text and "derivative" in text:
        return 'Choose directions that need no second derivatives, such as "random". '
    if isinstance(error, ImportError):
        return "Install the extra: pip install 'train-sentinel[insight]'. "
    if _is_own(error):
        return ""
    return "The loss of the trainer must be computable again on a kept batch; or give loss_fn=. "


def _is_own(error: Exception) -> bool:
    """Whether `sentinel.insight` raised it itself: its message has the remedy."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return str(where).startswith("sentinel.insight.")


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def print_message(message: str) -> None:
    try:
        sys.stderr.write(f"sentinel: {message}\n")
    except (OSError, ValueError):
        # A closed stderr is none of the training's concern.
        return
