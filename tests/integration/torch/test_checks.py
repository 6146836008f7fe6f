"""Trainings with an error that no curve shows are named by it in the first steps."""

import copy
import gc
import pickle
from weakref import ref

import pytest
import torch
from support.checked_trainings import (
    HEALTHY,
    SILENT,
    FunctionalDropout,
    backbone_left_out,
    detached_body,
    examples,
    frozen_backbone_in_evaluation_mode,
    head_left_out,
    initialized_after_a_load,
    initialized_again,
    layers_in_a_list,
    loaded,
    network,
    train,
)
from support.training_loops import monitored

from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.checks.batches import fingerprint
from sentinel.client.checks.evaluation import ForwardMode
from sentinel.config.settings import load_settings
from sentinel.detectors.unexpected_weight_changes import UnexpectedWeightChanges
from sentinel.model.finding import Finding
from sentinel.model.record import CHECK_KEY, PROBLEM_KEY, Event
from sentinel.pipeline.pipeline import build

MAX_STEPS = 20


@pytest.fixture(autouse=True)
def one_seed(one_thread):
    torch.manual_seed(0)


def notifications(records):
    """Detectors of the cases of which people are notified, with the steps at which they opened."""
    pipeline, found = build(load_settings()), {}
    for record in records:
        for result in pipeline.process(record):
            for notification in result.case_notifications:
                incident = notification.incident
                found.setdefault(incident.key.detector, incident.opened_step)
    return found


@pytest.mark.parametrize("training", SILENT, ids=lambda each: each.__name__)
def test_an_error_is_named_within_twenty_steps(training, recorded):
    monitored(training)()

    found = notifications(recorded()[0])
    assert [*found] == [SILENT[training]]
    assert found[SILENT[training]] <= MAX_STEPS


@pytest.mark.parametrize("training", HEALTHY, ids=lambda each: each.__name__)
def test_a_healthy_training_passes_the_checks(training, recorded, reported_metadata):
    monitored(training)()

    records = recorded()[0]
    checks = [each for each in records if each.event is Event.CHECK]
    assert {each.attributes[PROBLEM_KEY] for each in checks} <= {""}
    # Weights are not compared around a step with a closure, at a rate that changes nothing, or if
    # they are frozen when the step begins.
    unchecked = (
        "lbfgs", "norms_too_coarse_for_the_rate", "rate_as_a_tensor",
        "discriminator_frozen_for_the_generator", "new_tokens_alone",
    )  # fmt: skip
    passed = {each.attributes[CHECK_KEY] for each in checks}
    assert "weights" in passed or training.__name__ in unchecked
    assert notifications(records) == {}
    assert not any(key.startswith("patch/check_") for key in reported_metadata()[0])


def test_weights_are_set_anew_since_the_step_before(recorded):
    monitored(initialized_again)()

    detector = UnexpectedWeightChanges()
    outputs = [detector.update(record) for record in recorded()[0]]
    finding = next(each for each in outputs if isinstance(each, Finding))
    assert finding.onset_step == 9
    assert "`0`, `4`, `6`" in finding.summary


@pytest.mark.parametrize(("kind", "rate"), [(torch.optim.AdamW, 1.0), (torch.optim.SGD, 500.0)])
def test_a_first_step_that_changes_all_of_a_load_is_no_initialization(kind, rate, recorded):
    with monitored:
        model = loaded()
        optimizer = kind(model.parameters(), rate)
        train(model, optimizer, steps=1)
        optimizer.param_groups[0]["lr"] = 0.0
        train(model, optimizer, steps=8)

    checks = [each for each in recorded()[0] if each.event is Event.CHECK]
    reports = {each.attributes[CHECK_KEY]: each.attributes[PROBLEM_KEY] for each in checks}
    assert reports["loaded_weights"] == ""


def test_weights_that_the_first_rank_gives_to_the_others_are_no_initialization(
    recorded, monkeypatch
):
    """DistributedDataParallel sends the weights of rank 0, which may have loaded others."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monitored(initialized_after_a_load)()

    checks = [each for each in recorded()[1] if each.event is Event.CHECK]
    reports = {each.attributes[CHECK_KEY]: each.attributes[PROBLEM_KEY] for each in checks}
    assert reports["loaded_weights"] == ""


def test_the_set_up_is_recorded(recorded, reported_metadata):
    monitored(frozen_backbone_in_evaluation_mode)()

    known = reported_metadata()[0]
    linear = [20 * 64 + 64, 64 * 64 + 64, 64 * 5 + 5]
    assert known["model_parameters"] == sum(linear) + 2 * 64
    assert known["trained_parameters"] == linear[1] + linear[2]
    assert known["parameter_types"] == "float32"
    assert "modules_without_gradient" not in known
    assert "modules_without_optimizer" not in known


def test_trained_modules_without_a_gradient_are_recorded(reported_metadata):
    monitored(detached_body)()

    assert reported_metadata()[0]["modules_without_gradient"] == "`body`"


@pytest.mark.parametrize(
    ("training", "described"),
    [
        (head_left_out, "`4`, `6`, 75.29% of the elements with gradients"),
        (
            backbone_left_out,
            "6 parameters outside the model, 55.67% of the elements with gradients",
        ),
        (layers_in_a_list, "4 parameters outside the model, 71.62% of the elements with gradients"),
    ],
)
def test_gradients_that_no_optimizer_uses_are_recorded(training, described, reported_metadata):
    monitored(training)()

    assert reported_metadata()[0]["modules_without_optimizer"] == described


def test_a_model_whose_mode_is_observed_can_be_pickled_and_copied():
    model = network()
    mode = ForwardMode(model[3], lambda: None)

    # A file is read where sentinel is not installed.
    written = pickle.dumps(model)
    assert b"sentinel" not in written
    inputs = examples()[0]
    read = pickle.loads(written).eval()
    plain = copy.deepcopy(model).eval()
    assert torch.equal(torch.compile(read, backend="eager", fullgraph=True)(inputs), plain(inputs))

    for each in (copy.deepcopy(model), model):
        with torch.no_grad():
            for _ in range(3):
                each(inputs)
        assert not each[3]._forward_pre_hooks
    assert mode.passes == mode.training_passes == 2


def test_a_model_whose_calls_are_observed_can_be_pickled_and_copied(recorded):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    with monitored:
        train(model, optimizer, steps=1)
        assert len(model._forward_pre_hooks) == 1
        written = pickle.dumps(model)
        for each in (pickle.loads(written), copy.deepcopy(model)):
            assert each(examples()[0]).shape == (16, 5)
        train(model, optimizer, steps=8)
        assert not model._forward_pre_hooks

    assert b"sentinel" not in written


def test_a_compiled_model_is_not_compiled_again_by_an_evaluation():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = FunctionalDropout("with")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters())
    with monitored:
        for _ in range(4):
            train(compiled, optimizer, steps=4)
            model.eval()
            with torch.no_grad():
                compiled(examples()[0])
            model.train()

    # One for the training, one for the evaluation.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_compiled_code_may_use_autocast(recorded, reported_metadata):
    torch._dynamo.reset()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())

    def compute(inputs, labels):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(inputs), labels)

    compiled = torch.compile(compute, backend="eager", fullgraph=True)
    with monitored:
        for _ in range(8):
            optimizer.zero_grad()
            compiled(*examples()).backward()
            optimizer.step()

    assert notifications(recorded()[0]) == {}
    states = {key: each for key, each in reported_metadata()[0].items() if "patch/" in key}
    assert not any(each.startswith("off") for each in states.values())


def test_a_model_whose_calls_are_observed_can_be_compiled_for_export():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    with monitored:
        train(model, optimizer, steps=1)
        assert len(model._forward_pre_hooks) == 1
        model.eval()
        assert not model._forward_pre_hooks


def test_dropout_is_observed_between_an_evaluation_and_the_next_pass_alone(recorded):
    functional = torch.nn.functional
    originals = functional.dropout, functional.scaled_dot_product_attention
    with monitored:
        model = FunctionalDropout("without")
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, steps=3)
        model.eval()
        assert functional.dropout is not originals[0]
        with torch.no_grad():
            functional.dropout(input=torch.ones(2, 2), p=0.5)
            model(examples()[0])
        train(model, optimizer, steps=1)
        assert (functional.dropout, functional.scaled_dot_product_attention) == originals
        model.eval()
        model(examples()[0])
        train(model, optimizer, steps=1)

    assert notifications(recorded()[0]) != {}


def test_no_model_is_kept_alive():
    def train():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters())

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        for _ in range(12):
            optimizer.step(closure)
        return ref(model)

    with monitored:
        known = train()
        gc.collect()
        assert known() is None


def test_a_model_at_the_address_of_another_is_found():
    seen = SeenModules()
    for _ in range(20):
        model = torch.nn.Linear(2, 2)
        seen.add(model)
        assert seen.modules() == [model]
        del model
        gc.collect()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_fingerprint_is_of_the_elements_of_any_dtype(dtype):
    batch = (torch.arange(600) % 7 > 2).to(dtype).reshape(20, 30)
    other = batch.clone()
    other[0, 0] = not other[0, 0]

    assert fingerprint([batch]) == fingerprint({"inputs": batch.clone()}) != 0
    assert fingerprint([other]) != fingerprint([batch])
    assert fingerprint([torch.ones_like(batch)]) == 0
