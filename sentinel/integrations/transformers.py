"""Transformers: `Trainer` and trainers built on it, such as TRL, Axolotl and LLaMA-Factory.

Patches `CallbackHandler.call_event`, which handles every event of a trainer on every rank;
`Trainer.evaluate`, `predict` and `_save_checkpoint`, which take time without steps; and
`Trainer.log`, for text samples if the run requests them.

Commands are executed through `TrainerControl`, at the end of the step at which they are due. The
step is `state.global_step`, recorded on every rank at the end of each step. Logs are the same on
all ranks, so only rank 0 records them. Loss, gradient norm and learning rate are captured by the
patches of `torch_loop`; the trainer's own values of them are recorded as `logged_loss` etc.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.client.capture.framework_metadata import dataset_metadata, transformers_metadata
from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.text_sampling import GeneratedBatch
from sentinel.client.session import current_session
from sentinel.model.record import Event

FRAMEWORK = "transformers.trainer"

_HELD_OUT_PREFIXES = ("eval_", "test_")
_PREDICTION_PHASE, _AFTER_TRAINING_PHASE = "prediction", "after training"
"""Phases: prediction batches outside any other phase, and the time after the last step."""


def attach(patcher: Patcher) -> None:
    """Install the patches."""
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
    """Records the events of a trainer. Holds no reference to the trainer's objects."""

    def __init__(self, patcher: Patcher, phases: PhaseRecorder) -> None:
        self._patcher, self._phases = patcher, phases
        self._args_ref: Any = None
        """Weak reference to the arguments of the registered trainer."""
        self._has_trained = False
        self._restarted_after: int | None = None
        """The step after which another training started, until its first step reports it."""

    def on_event(
        self, handler: Any, event: str, args: Any, state: Any, control: Any, **given: Any
    ) -> None:
        """Called for each event, before the callbacks."""
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
        """Register a trainer at its start, or at its first observed event; record its metadata."""
        if event == "on_train_begin":
            self._phases.end(_AFTER_TRAINING_PHASE)
            self._restarted_after = state.global_step if self._has_trained else None
            self._has_trained = True
            self._patcher.loop.begin_training(is_resumed=state.global_step > 0)
        self._args_ref = weakref.ref(args)
        if not state.is_local_process_zero:
            return
        model, optimizer = (getattr(handler, name, None) for name in ("model", "optimizer"))
        metadata = transformers_metadata(args, state, model, optimizer)
        metadata |= dataset_metadata(getattr(handler, "train_dataloader", None))
        if event == "on_train_begin" and state.global_step:
            metadata["resumed_from"] = state.global_step
        self._patcher.recorder.record_event(Event.METADATA, state.global_step, metadata)

    def _on_step_end(self, state: Any) -> None:
        """Called when a step is complete and its number is known."""
        self._phases.end(_PREDICTION_PHASE)
        after, self._restarted_after = self._restarted_after, None
        self._patcher.recorder.log_from_framework(
            {} if after is None else {"restarted_after_step": after}, state.global_step
        )

    def _execute_commands(self, control: Any, step: int) -> None:
        """Execute the actions that are due at this step; callbacks may override them."""
        commands = self._patcher.recorder.commands
        commands.framework_handles = True
        actions = commands.pop_actions(step)
        control.should_save = control.should_save or "checkpoint" in actions
        control.should_training_stop = control.should_training_stop or "stop" in actions

    def _on_log(self, state: Any, logs: Any) -> None:
        if not state.is_world_process_zero or not isinstance(logs, Mapping):
            return
        # None is a mean over nothing and is not counted as a dropped value.
        values = {name: logs[name] for name in logs if not isinstance(logs[name], str | None)}
        recorder, step = self._patcher.recorder, state.global_step
        if "train_runtime" in values:
            recorder.record_event(Event.METADATA, step, values)
        elif "loss" not in values and any(map(_is_held_out, values)):
            recorder.record_event(Event.EVAL, step, values)
        else:
            recorder.log_from_framework(values, step)

    def _on_save(self, args: Any, state: Any) -> None:
        location = {}
        # A hyper-parameter search saves in another directory.
        if not getattr(state, "is_hyper_param_search", False):
            folder = Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"
            location["path"] = str(folder)
        self._patcher.recorder.record_event(Event.SAVE, state.global_step, location)

    def _on_prediction_step(self) -> None:
        """Called after each prediction batch, also if a subclass has its own evaluation loop."""
        if not self._phases.is_active("eval", "predict", _PREDICTION_PHASE):
            self._phases.begin(_PREDICTION_PHASE)


class CompletionObserver:
    """Records the last completions of a TRL trainer, if the run was started with `samples`."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._last_completion: Any = None
        """The last recorded completion, since logs may be more frequent than generations."""

    def on_log(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Called when a trainer logs; reads the texts of its own completion table."""
        session = current_session()
        if session is None or not session.arguments.samples:
            return
        # The attribute of older versions of TRL, then that of current ones.
        texts = getattr(trainer, "_textual_logs", None) or getattr(trainer, "_logs", None)
        if not isinstance(texts, dict) or not trainer.state.is_world_process_zero:
            return
        completions = list(texts.get("completion", ()))
        if not completions or completions[-1] is self._last_completion:
            return
        self._last_completion = completions[-1]
        batch = GeneratedBatch(
            [_conversation_text(prompt) for prompt in texts.get("prompt", ())],
            [_conversation_text(completion) for completion in completions],
            {
                name: [_reward_or_none(each) for each in row]
                for name, row in texts["rewards"].items()
            },
        )
        self._patcher.recorder.record_samples(
            batch, trainer.state.global_step, session.arguments.samples
        )


def _is_held_out(name: str) -> bool:
    # An evaluation with any prefix logs its duration as <prefix>_runtime.
    return name.startswith(_HELD_OUT_PREFIXES) or name.endswith("_runtime")


def _reward_or_none(reward: Any) -> Any:
    # TRL stores NaN for a reward that does not apply.
    return None if reward != reward else reward  # noqa: PLR0124


def _conversation_text(value: Any) -> Any:
    """A text; of a conversation, its contents, one per line."""
    if type(value) is not list:
        return value
    contents = [message.get("content") for message in value if type(message) is dict]
    return "\n".join(content for content in contents if type(content) is str)
