"""The configuration in the logs of trackers equals that which the client records."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from requirements import need

need("torch", "transformers", "trl", "wandb", "trackio", "tensorboard")

from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from trl import GRPOConfig

from sentinel.client.capture.framework_metadata import transformers_metadata
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.readers.format_detection import open_log

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """The logs of a TRL run by transformers' own callbacks, by tracker, and its metadata."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        # It reads the variable when it is imported, as wandb does when it is first used.
        from trackio.utils import TRACKIO_DIR

        logs = {"tensorboard": folder / "runs", "trackio": TRACKIO_DIR / "config-of-tracker.db"}
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "runs"))
        args = GRPOConfig(
            output_dir="out", learning_rate=3e-6, beta=0.02, max_steps=400, save_steps=50,
            bf16=False, num_generations=4, per_device_train_batch_size=4, use_cpu=True,
            report_to=[], project="config-of-tracker",
        )  # fmt: skip
        state = SimpleNamespace(
            is_world_process_zero=True, is_hyper_param_search=False, trial_name=None,
            trial_params=None, max_steps=400, save_steps=50, global_step=0, num_train_epochs=1,
        )  # fmt: skip
        for make in (TensorBoardCallback, TrackioCallback, WandbCallback):
            callback = make()
            callback.on_train_begin(args, state, SimpleNamespace(), model=None)
            for step in range(1, 6):
                state.global_step = step
                values = {"loss": 1.0 / step, "kl": 0.01}
                callback.on_log(args, state, SimpleNamespace(), logs=values, model=None)
            if make is TrackioCallback:
                callback._trackio.finish()
            elif make is WandbCallback:
                logs["wandb"] = Path(callback._wandb.run.dir).parent
                callback._wandb.finish()
            else:
                callback.tb_writer.close()
        return logs, transformers_metadata(args, state, None)


@pytest.mark.parametrize("kind", ["tensorboard", "trackio", "wandb"])
def test_the_config_in_a_tracker_equals_that_of_the_client(tracked, kind):
    logs, expected = tracked
    records = list(open_log(logs[kind]))
    assert [each.event.value for each in records[:3]] == ["start", "metadata", "step"]
    metadata = [each for each in records if each.event is Event.METADATA]
    logged = {
        name: x for each in metadata for name, x in {**each.values, **each.attributes}.items()
    }
    assert logged.pop("save_steps") == "50", "a number only for logs with saves"
    assert logged["algorithm"] == "grpo"
    assert {name: expected[name] for name in logged if name != "model"} == logged
    assert set(expected) - set(logged) <= {
        "save_steps", "output_dir", "framework_version", "model",
        "torch", "transformers", "accelerate", "trl", "peft", "deepspeed", "vllm", "datasets",
    }  # fmt: skip
    assert {r.rank for r in records} == {WHOLE_RUN}
    assert [r.step for r in records if r.event is Event.STEP] == [1, 2, 3, 4, 5]
