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

from sentinel.client.capture.framework_metadata import transformers_metadata
from sentinel.client.capture.loop import reset_loop
from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.text_sampling import GeneratedBatch
from sentinel.client.session import current_session
from sentinel.model.record import Event

FRAMEWORK = "transformers.trainer"

_HELD_OUT_PREFIXES = ("eval_", "test_")
_PREDICTION_PHASE, _AFTER_TRAINING_PHASE = "prediction", "after training"
"""Phases: batches predicted out of any other; and what is left to do once the last step is made."""


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    trainer, callbacks = sys.modules[FRAMEWORK], sys.modules["transformers.trainer_callback"]
    phases = PhaseRecorder(patcher)
    patcher.wrap(
        callbacks.CallbackHandler,
        "call_event",
        before=TransformersObserver(patcher, phases).on_event,
    )
    patcher.wrap(trainer.Trainer, "log", before=CompletionObserver(patcher).on_log)
    for name, phase in (("evaluate", "eval"), ("predict", "predict"), ("_save_checkpoint", "save")):
        patcher.replace(trainer.Trainer, name, phases.wrapper_for(phase))


class TransformersObserver:
    """What a trainer calls its callbacks for. Nothing of the trainer's is kept."""

    def __init__(self, patcher: Patcher, phases: PhaseRecorder) -> None:
        self._patcher, self._phases = patcher, phases
        self._args_ref: Any = None
        """The arguments, weakly, of the trainer that is known already."""
        self._has_trained = False
        self._restarted_after: int | None = None
        """The step that another training began after, until its first step has told so."""

    def on_event(
        self, handler: Any, event: str, args: Any, state: Any, control: Any, **given: Any
    ) -> None:
        """One event, before anybody's callbacks have seen it."""
        if event == "on_init_end":
            return
        if event == "on_train_begin" or self._args_ref is None or self._args_ref() is not args:
            self._register_trainer(handler, event, args, state)
        if event == "on_step_end":
            self._on_step_end(state)
            self._execute_commands(control, state.global_step)
        elif event == "on_log":
            self._on_log(state, given.get("logs"))
        elif event == "on_save":
            self._on_save(args, state)
        elif event == "on_prediction_step":
            self._on_prediction_step()
        elif event in {"on_evaluate", "on_predict"}:
            self._phases.end(_PREDICTION_PHASE)
        elif event == "on_train_end":
            self._patcher.recorder.commands.framework_handles = False
            self._phases.begin(_AFTER_TRAINING_PHASE)

    def _register_trainer(self, handler: Any, event: str, args: Any, state: Any) -> None:
        """A training begins, or we come upon one: say what it is."""
        if event == "on_train_begin":
            self._phases.end(_AFTER_TRAINING_PHASE)
            self._restarted_after = state.global_step if self._has_trained else None
            self._has_trained = True
            reset_loop(self._patcher.loop)
        self._args_ref = weakref.ref(args)
        if not state.is_local_process_zero:
            return
        facts = transformers_metadata(args, state, getattr(handler, "model", None))
        if event == "on_train_begin" and state.global_step:
            facts["resumed_from"] = state.global_step
        self._patcher.recorder.record_event(Event.METADATA, state.global_step, facts)

    def _on_step_end(self, state: Any) -> None:
        """The step is complete, and has its number."""
        self._phases.end(_PREDICTION_PHASE)
        after, self._restarted_after = self._restarted_after, None
        self._patcher.recorder.log_from_framework(
            {} if after is None else {"restarted_after_step": after}, state.global_step
        )

    def _execute_commands(self, control: Any, step: int) -> None:
        """Do what is asked of every rank at this step; callbacks have the last word."""
        errands = self._patcher.recorder.commands
        errands.framework_handles = True
        words = errands.pop_actions(step)
        control.should_save = control.should_save or "checkpoint" in words
        control.should_training_stop = control.should_training_stop or "stop" in words

    def _on_log(self, state: Any, logs: Any) -> None:
        if not state.is_world_process_zero or not isinstance(logs, Mapping):
            return
        # None stands for a mean over nothing, and is not worth counting as refused.
        told = {name: logs[name] for name in logs if not isinstance(logs[name], str | None)}
        recorder, step = self._patcher.recorder, state.global_step
        if "train_runtime" in told:
            recorder.record_event(Event.METADATA, step, told)
        elif "loss" not in told and any(map(_is_held_out, told)):
            recorder.record_event(Event.EVAL, step, told)
        else:
            recorder.log_from_framework(told, step)

    def _on_save(self, args: Any, state: Any) -> None:
        facts = {}
        # In a search for hyper-parameters it lies somewhere else.
        if not getattr(state, "is_hyper_param_search", False):
            folder = Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"
            facts["path"] = str(folder)
        self._patcher.recorder.record_event(Event.SAVE, state.global_step, facts)

    def _on_prediction_step(self) -> None:
        """A batch was predicted, maybe by a subclass that evaluates in its own way."""
        if not self._phases.is_active("eval", "predict", _PREDICTION_PHASE):
            self._phases.begin(_PREDICTION_PHASE)


class CompletionObserver:
    """The last completions that a TRL trainer generated, where the run was asked for `samples`."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._last_completion: Any = None
        """The last completion shown: logs may come more often than generations."""

    def on_log(self, trainer: Any, *_: Any, **__: Any) -> None:
        """A trainer logs; what it keeps for its own table of completions is shown."""
        session = current_session()
        if session is None or not session.arguments.samples:
            return
        # Of older versions of TRL, and of today's.
        kept = getattr(trainer, "_textual_logs", None) or getattr(trainer, "_logs", None)
        if not isinstance(kept, dict) or not trainer.state.is_world_process_zero:
            return
        completions = list(kept.get("completion", ()))
        if not completions or completions[-1] is self._last_completion:
            return
        self._last_completion = completions[-1]
        batch = GeneratedBatch(
            [_conversation_text(prompt) for prompt in kept.get("prompt", ())],
            [_conversation_text(completion) for completion in completions],
            {
                name: [_reward_or_none(each) for each in row]
                for name, row in kept["rewards"].items()
            },
        )
        self._patcher.recorder.record_samples(
            batch, trainer.state.global_step, session.arguments.samples
        )


def _is_held_out(name: str) -> bool:
    # Whatever prefix an evaluation was given, how long it took is told under it.
    return name.startswith(_HELD_OUT_PREFIXES) or name.endswith("_runtime")


def _reward_or_none(reward: Any) -> Any:
    # NaN is how TRL keeps that a reward does not apply.
    return None if reward != reward else reward  # noqa: PLR0124


def _conversation_text(value: Any) -> Any:
    """A text; of a conversation, what was said in it, a turn a line."""
    if type(value) is not list:
        return value
    said = [turn.get("content") for turn in value if type(turn) is dict]
    return "\n".join(content for content in said if type(content) is str)
