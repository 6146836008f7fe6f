"""The rows of each step that a rank notes: those of the batches that the loop received."""

import os
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.training_loops import monitored
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from sentinel.client.capture import drawn_rows
from sentinel.client.capture.drawn_rows import losses_by_row
from sentinel.client.session import current_session
from sentinel.transport.command_page import CommandPage, command_page_path
from sentinel.transport.row_page import read_row_page, row_page_path

ROWS, CLASSES = 40, 3


class Numbered(Dataset):
    """The content of a row is its index."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor(int(index) % CLASSES)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([Numbered()[index] for index in range(ROWS)])


class Named(Numbered):
    def __getitem__(self, name):
        return super().__getitem__(int(name))


def train(loader, epochs=1, accumulation=1, *, before_epoch=lambda net: None, on_step=None):
    """Train; returns the rows of each step as the loop saw them, and what the page holds."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    received, current = [], []
    with monitored:
        ring = current_session().ring.path
        for _ in range(epochs):
            before_epoch(net)
            for number, (batch, labels) in enumerate(loader, 1):
                inputs = batch.reshape(-1, 4)
                current += [int(row) for row in inputs[:, 0]]
                cross_entropy(net(inputs), labels.reshape(-1)).backward()
                if number % accumulation == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    received.append(current)
                    current = []
                    if on_step is not None:
                        on_step(ring)
        steps, gap = read_row_page(ring)
    return received, [[*each.rows] for _, each in sorted(steps.items())], gap


@pytest.mark.parametrize(
    ("settings", "accumulation"),
    [
        ({}, 1),
        ({"num_workers": 2, "prefetch_factor": 3}, 1),
        ({"num_workers": 2, "in_order": False}, 2),
        ({"num_workers": 1, "persistent_workers": True}, 5),
    ],
)
def test_the_rows_of_a_step_are_those_of_the_batches_it_received(settings, accumulation):
    loader = DataLoader(Numbered(), 4, shuffle=True, **settings)
    pickle.dumps(loader.dataset)

    received, noted, gap = train(loader, epochs=2, accumulation=accumulation)

    assert len(received) == 20 // accumulation
    assert noted == received
    assert gap == ""


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": None, "sampler": RandomSampler(range(ROWS))},
        {"batch_sampler": BatchSampler(SequentialSampler(range(ROWS)), 7, drop_last=False)},
        {"batch_sampler": [(3, 1), torch.tensor([2, 0]).tolist()]},
        {"sampler": [torch.tensor(index) for index in (5, 4, 9)], "batch_size": 2},
    ],
)
def test_any_sampler_of_integers_is_noted(settings):
    received, noted, gap = train(DataLoader(Numbered(), **settings))

    assert noted == received
    assert gap == ""


def test_a_stream_and_a_sampler_of_names_have_no_rows():
    assert train(DataLoader(Stream(), 4))[1:] == (
        [], "the data set is iterable and has no indices",
    )  # fmt: skip
    assert train(DataLoader(Named(), 2, sampler=["1", "2", "3"]))[1:] == (
        [], "the sampler yields no integers",
    )  # fmt: skip


@pytest.mark.parametrize("without_gradient", [False, True])
def test_the_rows_of_an_evaluation_are_not_those_of_a_step(without_gradient):
    """Also before the first step, and if its loop turns gradients off only for the model."""

    def evaluate(net):
        net.eval()
        with torch.set_grad_enabled(not without_gradient):
            for inputs, _ in DataLoader(Numbered(), 16):
                with torch.no_grad():
                    net(inputs)
        net.train()

    received, noted, _ = train(
        DataLoader(Numbered(), 4, shuffle=True), epochs=2, before_epoch=evaluate
    )

    assert noted == received


def test_batches_of_another_thread_have_no_rows():
    """They are fetched before their step, and so do not count for the step in progress either."""

    def fetch(_):
        thread = threading.Thread(target=lambda: fetched.extend(DataLoader(Numbered(), 4)))
        thread.start()
        thread.join()

    fetched = []
    received, noted, gap = train(DataLoader(Numbered(), 20), on_step=fetch)
    assert len(fetched) == ROWS // 2
    assert noted == received
    assert gap == ""

    fetched = []
    _, noted, gap = train(Fetched(fetched, fetch))
    assert noted == []
    assert gap == "the batches are fetched by another thread than that of the training"


class Fetched:
    """A first batch, and then those that another thread fetched."""

    def __init__(self, fetched, fetch):
        self.fetched, self.fetch = fetched, fetch

    def __iter__(self):
        yield Numbered()[0]
        self.fetch(None)
        yield from self.fetched


def test_the_agent_can_switch_rows_off():
    def switch_off(ring):
        page = CommandPage(command_page_path(ring, 0))
        page.switch_rows_off()
        page.close()

    _, noted, _ = train(DataLoader(Numbered(), 4), on_step=switch_off)

    assert noted == []


def test_a_forked_child_does_not_touch_the_page():
    def fork(_):
        child = os.fork()
        if not child:
            os._exit(len([*DataLoader(Numbered(), 4)]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ROWS // 4

    received, noted, _ = train(DataLoader(Numbered(), 20), on_step=fork)

    assert noted == received


def test_a_row_of_a_jump_has_its_loss():
    """A loss on the CPU that jumps is measured at any speed of the training."""
    net = torch.nn.Linear(4, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    first = {name: value.clone() for name, value in net.state_dict().items()}
    first["weight"][0] = 1.0
    with monitored:
        ring = current_session().ring.path
        net.load_state_dict(first)
        for number, (inputs, labels) in enumerate(DataLoader(Numbered(), 4)):
            scale = torch.ones(4, 1)
            scale[2] = float("nan") if number == 8 else 1e9 if number == 5 else 1.0
            cross_entropy(net(0 * inputs + scale), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 8:
                net.load_state_dict(first)
        steps, _ = read_row_page(ring)

    for step in (6, 9):
        losses = steps[step].losses
        worst = max(range(4), key=lambda row: (losses[row] != losses[row], losses[row]))
        assert steps[step].rows[worst] == 4 * (step - 1) + 2


def test_no_space_for_the_page_is_no_error(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sentinel.client.capture.drawn_rows.RowPage", fail)

    received, noted, _ = train(DataLoader(Numbered(), 4))

    assert received
    assert noted == []


def test_the_page_is_beside_the_ring_and_small():
    sizes = []
    train(
        DataLoader(Numbered(), 4),
        on_step=lambda ring: sizes.append(row_page_path(ring).stat().st_size),
    )
    assert 0 < max(sizes) < 1 << 19


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_loss_of_each_row_is_read_from_the_graph(reduction):
    torch.manual_seed(1)
    scores = torch.randn(6, CLASSES, requires_grad=True)
    labels = torch.tensor([0, 1, -100, 2, 0, 1])
    expected = cross_entropy(scores, labels, reduction="none")
    loss = cross_entropy(scores, labels, reduction=reduction)

    found = losses_by_row(loss.mean() / 3, 6)

    assert torch.allclose(found, expected)
    assert not found.requires_grad


def test_the_loss_of_a_row_of_tokens_is_their_mean():
    weights = torch.randn(5, CLASSES, requires_grad=True)
    logits = torch.randn(4, 7, 5) @ weights
    labels = torch.randint(0, CLASSES, (4, 6))
    labels[1, 2:] = -100
    each = cross_entropy(
        logits[:, :-1].reshape(-1, CLASSES), labels.reshape(-1), reduction="none"
    ).reshape(4, 6)
    loss = cross_entropy(logits[:, :-1].reshape(-1, CLASSES), labels.reshape(-1))

    found = losses_by_row(loss, 4)

    assert torch.allclose(found, each.sum(1) / (labels != -100).sum(1))
    # As many tokens in one packed row.
    assert losses_by_row(loss, 8) is None
    assert losses_by_row((logits**2).mean(), 4) is None
    assert losses_by_row(torch.tensor(1.0), 4) is None


def test_losses_on_a_device_are_written_once_they_arrive(monkeypatch):
    """Nothing waits for them; the page has them some steps later."""
    pending = []

    def start_vector(_, vector, deliver):
        pending.append((vector.tolist(), deliver))
        return True

    monkeypatch.setattr("sentinel.client.capture.drawn_rows.ASYNC_DEVICE_TYPES", {"cpu"})
    monkeypatch.setattr(
        "sentinel.client.capture.device_copy.DeviceCopies.start_vector", start_vector
    )
    monkeypatch.setattr("sentinel.client.capture.drawn_rows.MAX_LOSS_SHARE", float("inf"))
    found = []

    def read(ring):
        found.append(read_row_page(ring)[0][len(found) + 1].losses)
        numbers, deliver = pending.pop()
        deliver(numbers)
        found[-1] = found[-1], read_row_page(ring)[0][len(found)].losses

    train(DataLoader(Numbered(), 3), accumulation=2, on_step=read)

    assert len(found) == 7
    for before, after in found[:-1]:
        assert before == ()
        assert len(after) == 6
        assert min(after) >= 0.0


@pytest.mark.parametrize("ignored", [-100, 255])
def test_an_ignored_target_may_be_no_class(ignored):
    """In segmentation it is mostly 255. To read beyond the classes would end a GPU training."""
    scores = torch.randn(2, CLASSES, 4, 4, requires_grad=True)
    target = torch.randint(CLASSES, (2, 4, 4))
    target[0, 0, 0] = ignored
    losses = losses_by_row(cross_entropy(scores, target, ignore_index=ignored), 2)
    expected = [
        cross_entropy(each[None], labels[None], ignore_index=ignored).item()
        for each, labels in zip(scores, target, strict=True)
    ]

    assert losses.tolist() == pytest.approx(expected)


def test_a_sampler_on_a_device_is_not_waited_for():
    """A tensor of the device meta has no values to read."""
    rows = drawn_rows.DrawnRows(Path("0-0.ring"), None, None, None, fail)
    for index in (torch.arange(4, device="meta"), [*torch.arange(4, device="meta")]):
        iterator = SimpleNamespace()
        rows.on_draw(iterator, index)
        assert drawn_rows._pop_drawn(iterator) == (b"", 4)


def test_rows_that_are_switched_off_cost_nothing_further():
    rows = drawn_rows.DrawnRows(Path("0-0.ring"), None, None, None, fail)
    rows.close()
    iterator = SimpleNamespace()
    rows.on_draw(iterator, [1, 2])
    rows.on_batch(iterator, True)
    assert not vars(iterator)


def fail(error):
    raise error
