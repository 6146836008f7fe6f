"""The time that a step waits for its batches, with and without workers."""

import threading

import pytest
import torch
from support.training_loops import batch, column, loss_of, model, monitored, steps


@pytest.mark.parametrize("workers", [0, 2])
def test_the_data_wait_is_recorded_and_is_part_of_the_step_time(recorded, workers):
    """With a slow loader the wait is at least its time, and never more than the step time."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(SlowDataset(), batch_size=2, num_workers=workers)
    with monitored:
        for x in loader:
            optimizer.zero_grad()
            loss_of(net, x).backward()
            optimizer.step()

    waits = column(recorded, "data_wait")
    assert len(waits) == 3
    if not workers:
        assert min(waits) >= 2 * SlowDataset.SECONDS
    for record in steps(recorded):
        if "step_time" in record.values:
            assert 0 < record.values["data_wait"] <= record.values["step_time"]


def test_batches_fetched_by_another_thread_are_not_data_wait(recorded):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with monitored:
        loss_of(net, batch(0)).backward()
        optimizer.step()
        thread = threading.Thread(target=lambda: list(torch.utils.data.DataLoader(SlowDataset())))
        thread.start()
        thread.join()
        loss_of(net, batch(1)).backward()
        optimizer.step()

    assert column(recorded, "data_wait") == []


class SlowDataset(torch.utils.data.Dataset):
    SECONDS = 0.01

    def __len__(self):
        return 6

    def __getitem__(self, at):
        threading.Event().wait(self.SECONDS)
        return batch(at)[0]


def test_the_patch_is_undone():
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    before = vars(_BaseDataLoaderIter)["__next__"]
    with monitored:
        assert vars(_BaseDataLoaderIter)["__next__"] is not before
    assert vars(_BaseDataLoaderIter)["__next__"] is before
