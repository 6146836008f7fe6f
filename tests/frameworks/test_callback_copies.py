"""The callbacks of every framework can be copied and pickled, before and during a training."""

import copy
import pickle

import pytest
from requirements import need

from sentinel.client.session import current_session

need("transformers", "accelerate", "lightning")

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

SETTINGS = {"run": "test", "agent": False, "strict": True}


def transformers_callback():
    from sentinel.integrations.callbacks.transformers import TransformersCallback

    callback = TransformersCallback(**SETTINGS)
    return callback, callback.on_train_begin, lambda each: each.on_train_end()


def lightning_callback():
    import lightning.pytorch  # noqa: F401 - the callback derives from the one that is loaded

    from sentinel.integrations.callbacks.lightning import LightningCallback

    callback = LightningCallback(**SETTINGS)
    begin = lambda: callback.setup(None, None, "fit")  # noqa: E731
    return callback, begin, lambda each: each.teardown(None, None, "fit")


def accelerate_tracker():
    from sentinel.integrations.callbacks.accelerate import AccelerateTracker

    tracker = AccelerateTracker(**SETTINGS)
    return tracker, tracker.start, lambda each: each.finish()


@pytest.mark.fault("I8")
@pytest.mark.parametrize("make", [transformers_callback, lightning_callback, accelerate_tracker])
def test_a_copy_neither_starts_nor_ends_the_session_of_the_original(make, recorded):
    callback, begin, end = make()
    for make_copy in (copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        end(make_copy(callback))
        assert current_session() is None
    begin()
    session = current_session()
    assert session is not None
    for make_copy in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        if make_copy is not copy.copy:
            end(make_copy(callback))
        assert current_session() is session
    end(callback)
    assert current_session() is None
