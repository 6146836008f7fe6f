"""Which parameters a selection chooses, and under which names."""

import pytest
from torch import nn

from sentinel.insight.measure.parameters import describe_selection, plain_name, select_parameters


@pytest.fixture
def model():
    layers = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    layers[0].bias.requires_grad_(requires_grad=False)
    return layers


def test_by_default_those_that_require_a_gradient(model):
    assert [*select_parameters(model)] == ["0.weight", "1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("*weight", ["0.weight", "1.weight"]),
        ("0", ["0.weight", "0.bias"]),
        (["1.bias", "0.*"], ["0.weight", "0.bias", "1.bias"]),
        (lambda name, parameter: parameter.ndim == 1 and name[0] == "1", ["1.bias"]),
    ],
)
def test_selections(model, selection, names):
    assert [*select_parameters(model, selection)] == names


@pytest.mark.parametrize(
    ("selection", "error", "text"),
    [
        ("*lora*", ValueError, r"No parameter matches '\*lora\*'. Names are such as 0.weight"),
        (["0.*", "2.*"], ValueError, r"No parameter matches '2\.\*'"),
        ([], ValueError, "an empty list"),
        (3, TypeError, "not int"),
        ([3], TypeError, "strings"),
    ],
)
def test_errors_name_the_selection(model, selection, error, text):
    with pytest.raises(error, match=text):
        select_parameters(model, selection)


def test_a_frozen_model_needs_a_selection(model):
    model.requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="requires a gradient"):
        select_parameters(model)
    assert len(select_parameters(model, "*")) == 4


def test_wrappers_leave_the_names_as_they_are(model):
    class OptimizedModule(nn.Module):
        """What torch.compile returns."""

        def __init__(self, module):
            super().__init__()
            self._orig_mod = module

    names = [*select_parameters(model)]
    assert [*select_parameters(OptimizedModule(nn.DataParallel(model)))] == names
    assert [*select_parameters(nn.DataParallel(OptimizedModule(model)))] == names
    assert plain_name("a._fsdp_wrapped_module.module.weight") == "a.module.weight"


def test_selections_in_words():
    assert describe_selection(None) == "all trained parameters"
    assert describe_selection("*lora*") == "*lora*"
    assert describe_selection([*"abcdefg"]) == "a, b, c, d, e and 2 more"
    assert describe_selection(lambda name, _: True) == "chosen parameters"
