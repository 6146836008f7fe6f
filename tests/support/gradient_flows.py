"""Trainings whose layers are measured, and what is recorded of them."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

import sentinel
from sentinel.aggregate.layers import LayerAggregator
from sentinel.client.capture import gradient_flow
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.signals.layer_statistics import HISTOGRAM_KEY, by_layer

monitored = sentinel.monitor(run="test", agent=False, insight="gradient_flow")


@contextmanager
def every_step():
    """Measure every step, whatever it costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_flow, "WARM_UP_STRIDE", 1)
        patch.setattr(gradient_flow, "WARM_UP_MEASUREMENTS", 10_000)
        patch.setattr(gradient_flow, "MIN_DEVICE_STRIDE", 1)
        yield


def layer_records(records):
    """The records of the run that those of ranks make up, by step."""
    aggregator = LayerAggregator()
    made = (each for record in records for each in aggregator.process(record))
    found = [each for each in made if each.rank == WHOLE_RUN and each.event is Event.LAYERS]
    return {each.step_index: each for each in found}


def statistics(records, statistic):
    """The values of a statistic by step index and layer; `records` are of one rank."""
    return {step: by_layer(each.values, statistic) for step, each in layer_records(records).items()}


def histograms(record):
    """The histograms of a record by layer."""
    return json.loads(record.attributes[HISTOGRAM_KEY])


class GradientLog:
    """Collects each parameter's gradient as autograd leaves it, before anything changes it.

    `norms()` is of the layers: modules with parameters, by name.
    """

    def __init__(self, model, layer_of=lambda name: name.rpartition(".")[0]):
        self.gradients, self.layers = {}, {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.layers[name] = layer_of(name)
                parameter.register_post_accumulate_grad_hook(self._saver(name))

    def _saver(self, name):
        def save(parameter):
            self.gradients[name] = parameter.grad.detach().clone()

        return save

    def norms(self, scale=1.0):
        squares = {}
        for name, gradient in self.gradients.items():
            layer = self.layers[name]
            square = float(gradient.abs().double().pow(2).sum()) / scale**2
            squares[layer] = squares.get(layer, 0.0) + square
        return {layer: square**0.5 for layer, square in squares.items()}
