"""Transformers: `Trainer`, and what is built on it: TRL, Axolotl, LLaMA-Factory and the like.

Taps: `CallbackHandler.call_event`, which every event of a trainer passes on every rank, whenever
the trainer was built; `Trainer.evaluate`, `predict` and `_save_checkpoint`, which take time in
which no step is made; and `Trainer.log`, for texts, if those are asked for.

What is asked of the run is done through `TrainerControl`, at the end of the step it is asked for.
The step's number is `state.global_step`, told on every rank at the end of each step. Logs are the
same on every rank, so rank 0 alone tells them. Loss, gradient norm and learning rate are those of
the taps of plain PyTorch: what the trainer logs of them comes out as `logged_loss` and so on.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.client.capture.loop import begin_anew
from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.phases import Phases
from sentinel.client.capture.text_sampling import Batch
from sentinel.client.capture.transformers_config import run_facts
from sentinel.client.session import current
from sentinel.model.record import Event

FRAMEWORK = "transformers.trainer"

_HELD_OUT = ("eval_", "test_")
_PREDICTING, _AFTERWARDS = "prediction", "after training"
"""Phases: batches predicted out of any other; and what is left to do once the last step is made."""


def attach(tap: Tap) -> None:
    """Put the taps in."""
    trainer, callbacks = sys.modules[FRAMEWORK], sys.modules["transformers.trainer_callback"]
    phases = Phases(tap)
    tap.watch(callbacks.CallbackHandler, "call_event", before=Events(tap, phases).heard)
    tap.watch(trainer.Trainer, "log", before=Texts(tap).logged)
    for name, phase in (("evaluate", "eval"), ("predict", "predict"), ("_save_checkpoint", "save")):
        tap.replace(trainer.Trainer, name, phases.around(phase))


class Events:
    """What a trainer calls its callbacks for. Nothing of the trainer's is kept."""

    def __init__(self, tap: Tap, phases: Phases) -> None:
        self._tap, self._phases = tap, phases
        self._met: Any = None
        """The arguments, weakly, of the trainer that is known already."""
        self._trained = False
        self._began_after: int | None = None
        """The step that another training began after, until its first step has told so."""

    def heard(
        self, handler: Any, event: str, args: Any, state: Any, control: Any, **given: Any
    ) -> None:
        """One event, before anybody's callbacks have seen it."""
        if event == "on_init_end":
            return
        if event == "on_train_begin" or self._met is None or self._met() is not args:
            self._meet(handler, event, args, state)
        if event == "on_step_end":
            self._stepped(state)
            self._obey(control, state.global_step)
        elif event == "on_log":
            self._logged(state, given.get("logs"))
        elif event == "on_save":
            self._saved(args, state)
        elif event == "on_prediction_step":
            self._predicted()
        elif event in {"on_evaluate", "on_predict"}:
            self._phases.end(_PREDICTING)
        elif event == "on_train_end":
            self._tap.recorder.errands.led = False
            self._phases.begin(_AFTERWARDS)

    def _meet(self, handler: Any, event: str, args: Any, state: Any) -> None:
        """A training begins, or we come upon one: say what it is."""
        if event == "on_train_begin":
            self._phases.end(_AFTERWARDS)
            self._began_after = state.global_step if self._trained else None
            self._trained = True
            begin_anew(self._tap.loop)
        self._met = weakref.ref(args)
        if not state.is_local_process_zero:
            return
        facts = run_facts(args, state, getattr(handler, "model", None))
        if event == "on_train_begin" and state.global_step:
            facts["resumed_from"] = state.global_step
        self._tap.recorder.say(Event.FACTS, state.global_step, facts)

    def _stepped(self, state: Any) -> None:
        """The step is complete, and has its number."""
        self._phases.end(_PREDICTING)
        after, self._began_after = self._began_after, None
        self._tap.recorder.hear({} if after is None else {"began_after": after}, state.global_step)

    def _obey(self, control: Any, step: int) -> None:
        """Do what is asked of every rank at this step; callbacks have the last word."""
        errands = self._tap.recorder.errands
        errands.led = True
        words = errands.take(step)
        control.should_save = control.should_save or "checkpoint" in words
        control.should_training_stop = control.should_training_stop or "stop" in words

    def _logged(self, state: Any, logs: Any) -> None:
        if not state.is_world_process_zero or not isinstance(logs, Mapping):
            return
        # None stands for a mean over nothing, and is not worth counting as refused.
        told = {name: logs[name] for name in logs if not isinstance(logs[name], str | None)}
        recorder, step = self._tap.recorder, state.global_step
        if "train_runtime" in told:
            recorder.say(Event.FACTS, step, told)
        elif "loss" not in told and any(map(_is_held_out, told)):
            recorder.say(Event.EVAL, step, told)
        else:
            recorder.hear(told, step)

    def _saved(self, args: Any, state: Any) -> None:
        facts = {}
        # In a search for hyper-parameters it lies somewhere else.
        if not getattr(state, "is_hyper_param_search", False):
            folder = Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"
            facts["path"] = str(folder)
        self._tap.recorder.say(Event.SAVE, state.global_step, facts)

    def _predicted(self) -> None:
        """A batch was predicted, maybe by a subclass that evaluates in its own way."""
        if not self._phases.under_way("eval", "predict", _PREDICTING):
            self._phases.begin(_PREDICTING)


class Texts:
    """The last completions that a TRL trainer generated, where the run was asked for `samples`."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._shown: Any = None
        """The last completion shown: logs may come more often than generations."""

    def logged(self, trainer: Any, *_: Any, **__: Any) -> None:
        """A trainer logs; what it keeps for its own table of completions is shown."""
        session = current()
        if session is None or not session.arguments.samples:
            return
        # Of older versions of TRL, and of today's.
        kept = getattr(trainer, "_textual_logs", None) or getattr(trainer, "_logs", None)
        if not isinstance(kept, dict) or not trainer.state.is_world_process_zero:
            return
        completions = list(kept.get("completion", ()))
        if not completions or completions[-1] is self._shown:
            return
        self._shown = completions[-1]
        batch = Batch(
            [_text(prompt) for prompt in kept.get("prompt", ())],
            [_text(completion) for completion in completions],
            {name: [_reward(each) for each in row] for name, row in kept["rewards"].items()},
        )
        self._tap.recorder.sample(batch, trainer.state.global_step, session.arguments.samples)


def _is_held_out(name: str) -> bool:
    # Whatever prefix an evaluation was given, how long it took is told under it.
    return name.startswith(_HELD_OUT) or name.endswith("_runtime")


def _reward(given: Any) -> Any:
    # NaN is how TRL keeps that a reward does not apply.
    return None if given != given else given  # noqa: PLR0124


def _text(given: Any) -> Any:
    """A text; of a conversation, what was said in it, a turn a line."""
    if type(given) is not list:
        return given
    said = [turn.get("content") for turn in given if type(turn) is dict]
    return "\n".join(content for content in said if type(content) is str)
