"""The search for generators that workers copy, in what a data set holds."""

import random
from types import SimpleNamespace

import torch

from sentinel.client.checks import worker_generators
from sentinel.client.checks.worker_generators import copied_generator


class Data(torch.utils.data.Dataset):
    """A data set that holds these objects, and calls the last one."""

    def __init__(self, *held):
        self.held = held

    def __getitem__(self, index):
        return self.held[-1](index)


class Draw:
    def __init__(self):
        self.generator = random.Random(0)

    def __call__(self, index):
        return self.generator.random()


class Many:
    """An object that leads to ever more objects."""

    def __init__(self, levels):
        if levels:
            vars(self).update({f"each_{at}": Many(levels - 1) for at in range(12)})


def found(data):
    loader = torch.utils.data.DataLoader([0], num_workers=2)
    kind = torch.utils.data.dataloader._DatasetKind.Map
    return copied_generator(
        SimpleNamespace(
            _dataset=data, _num_workers=loader.num_workers, _worker_init_fn=None, _dataset_kind=kind
        )
    )


def test_a_generator_of_a_transform_is_found():
    assert found(Data(Draw())) == "generator"


def test_the_packages_that_a_data_set_refers_to_are_not_searched(monkeypatch):
    looked_at = []
    functions = worker_generators._functions
    monkeypatch.setattr(
        worker_generators, "_functions", lambda each: looked_at.append(each) or functions(each)
    )

    assert found(Data(torch, random, torch.nn.Module, Draw())) == "generator"
    assert len(looked_at) == 2

    looked_at.clear()
    assert found(Data(Many(3))) == ""
    assert len(looked_at) < worker_generators.MAX_OBJECTS
