"""Signs of life between steps are published in the ring: evaluations, saves and batches."""

import copy
import io
import pickle

import pytest
import torch
from support.training_loops import batch, loss_of, model, monitored

from sentinel.client.session import current_session
from sentinel.transport.ring import RingReader


def header():
    return RingReader(current_session().ring.path).read_header()


def train_step(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss_of(net, batch(0)).backward()
    optimizer.step()


def test_eval_of_a_model_in_training_is_an_evaluation_until_the_next_backward_pass():
    net = model()
    with monitored:
        train_step(net)
        assert header().activity == ""
        net.eval()
        assert header().activity == "evaluation"
        with torch.no_grad():
            net(batch(0))
        net.train()
        train_step(net)
        assert header().activity == ""


def test_eval_of_other_models_is_no_evaluation():
    frozen, evaluated = model().requires_grad_(False), model()
    evaluated.eval()
    with monitored:
        frozen.eval()
        evaluated.eval()
        assert header().activity == ""


@pytest.mark.parametrize("function", ["save", "load"])
def test_saving_and_loading_are_signs_of_life(function):
    class Slow(io.BytesIO):
        seen = frozenset()

        def write(self, data):
            self.seen |= {header().activity}
            return super().write(data)

        def read(self, *args):
            self.seen |= {header().activity}
            return super().read(*args)

        def readinto(self, buffer):
            self.seen |= {header().activity}
            return super().readinto(buffer)

    file = Slow()
    with monitored:
        before = header().activity_count
        torch.save({"x": torch.ones(3)}, file)
        if function == "load":
            file.seek(0)
            torch.load(file)
        assert function in file.seen
        assert header().activity == ""
        assert header().activity_count > before


def test_closing_the_file_of_a_checkpoint_is_part_of_the_save(tmp_path, monkeypatch):
    """A network file system writes it then."""
    seen = []
    writer = torch.serialization._open_zipfile_writer_file
    close = writer.__exit__
    monkeypatch.setattr(
        writer, "__exit__", lambda *args: [seen.append(header().activity), close(*args)][1]
    )
    with monitored:
        torch.save({}, tmp_path / "model.pt")
    assert seen == ["save"]


def test_a_data_set_may_refer_to_functions_that_are_observed():
    """Its workers are given it by pickling, which looks a function up by its name."""
    functions = [torch.save, torch.load, torch.serialization.load]
    with monitored:
        functions += [torch.save, torch.load]
        assert pickle.loads(pickle.dumps(functions)) == functions


def test_a_failed_save_ends():
    with monitored:
        with pytest.raises((AttributeError, pickle.PicklingError)):
            torch.save(lambda: None, io.BytesIO())
        assert header().activity == ""


def test_a_save_within_an_evaluation_leaves_it_open():
    net = model()
    with monitored:
        net.eval()
        torch.save(net.state_dict(), io.BytesIO())
        assert header().activity == "evaluation"


def test_each_batch_is_a_sign_of_life():
    data = torch.utils.data.DataLoader(torch.arange(4.0))
    with monitored:
        before = header().activity_count
        assert len(list(data)) == 4
        assert header().activity_count >= before + 4


def test_a_batch_that_arrives_after_the_run_raises_nothing():
    with monitored:
        iterator = iter(torch.utils.data.DataLoader(torch.arange(2.0)))
        activity = current_session().recorder.activity
        next(iterator)
    next(iterator)
    activity.count()
    activity.begin("save")
    activity.end("save")


def test_a_compiled_forward_may_freeze_a_layer():
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x):
            self.norm.eval()
            y = self.norm(x)
            self.norm.train()
            return y

    with monitored:
        compiled = torch.compile(Frozen(), fullgraph=True, backend="eager")
        compiled(torch.ones(3, 4)).sum().backward()


def test_an_evaluated_model_is_unchanged():
    """It can be copied and pickled: nothing of sentinel is attached to it."""
    net = model()
    with monitored:
        net.eval()
        pickle.dumps(copy.deepcopy(net))
        assert not net._forward_pre_hooks
        assert "eval" not in vars(net)
    assert torch.nn.Module.eval.__module__ == "torch.nn.modules.module"
    assert not hasattr(torch.serialization._save, "__wrapped__")
