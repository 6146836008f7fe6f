"""The signals of a run's charts: their names, labels and groups.

A value of an evaluation is `eval/<name>`, a disk is `disk_free/<name>`. The lowest and the highest
value of several GPUs are the range of one signal, as those of ranks are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sentinel.config.plugins import load_classes
from sentinel.model.evidence_text import label_of
from sentinel.model.record import Event
from sentinel.signals.catalogue import POSITION_KEYS, SIGNAL_GROUPS, SIGNALS, WEIGHT_KEY
from sentinel.signals.hardware import GPU_SIGNALS, NODE_SIGNALS

VALUE, LOW, HIGH = range(3)
"""What a stored value is of its signal: the value, or an end of its range."""

CHARTED_EVENTS = (Event.STEP, Event.EVAL, Event.HEARTBEAT, Event.SAMPLE)
"""Events whose values are series."""

MAIN_SIGNALS = (
    "loss",
    "reward",
    "kl_ref",
    "entropy",
    "completion_length",
    "grad_norm",
    "learning_rate",
    "step_time",
)
"""The group `main`, in its order."""

GROUPS = ("main", "training", "policy", "reward", "evaluation", "machine", "logged")

_GROUP_BY_HEADING = {
    "Loss": "training",
    "KL divergence": "policy",
    "Reward and preference": "reward",
    "Objective": "policy",
    "Completions and samples": "policy",
    "Age of the samples": "policy",
    "Tools and environments": "policy",
    "Mixture of experts": "training",
    "Optimiser": "training",
    "Curvature and distance": "training",
    "Progress": "training",
    "Speed": "training",
    "GPU": "machine",
    "Host": "machine",
}
_GROUP_BY_SIGNAL = {
    signal.name: _GROUP_BY_HEADING[heading]
    for heading, signals in SIGNAL_GROUPS.items()
    for signal in signals
}
_EVAL_PREFIX, _SAMPLE_PREFIX = "eval/", "sample/"
_DISK_PREFIX = "disk_free_"
_UNCHARTED = POSITION_KEYS | {WEIGHT_KEY, "global_step"}
_POSITIONS = {name: at for at, name in enumerate(dict.fromkeys((*MAIN_SIGNALS, *SIGNALS)))}


@cache
def chart_name(event: Event, name: str) -> tuple[str, int] | None:
    """The signal of a stored value, and what the value is of it; None if it is in no chart.

    >>> chart_name(Event.EVAL, "eval_loss"), chart_name(Event.HEARTBEAT, "gpu_power_max")
    (('eval/loss', 0), ('gpu_power', 2))
    """
    if name.removeprefix("eval_") in _UNCHARTED:
        return None
    if event is Event.EVAL:
        return _EVAL_PREFIX + name.removeprefix("eval_"), VALUE
    if event is Event.SAMPLE:
        return (name if name in SIGNALS else _SAMPLE_PREFIX + name), VALUE
    return _node_signal(name) if event is Event.HEARTBEAT else (name, VALUE)


def charted_name(signal: str) -> str:
    """The chart of a detector's signal.

    >>> charted_name("eval_loss"), charted_name("reward")
    ('eval/loss', 'reward')
    """
    is_eval = signal.startswith("eval_")
    return _EVAL_PREFIX + signal.removeprefix("eval_") if is_eval else signal


def _node_signal(name: str) -> tuple[str, int] | None:
    """The signal of a value of a heartbeat; None if it is no measurement of the node."""
    if name in NODE_SIGNALS:
        return name, VALUE
    if name.startswith(_DISK_PREFIX):
        return f"disk_free/{name.removeprefix(_DISK_PREFIX)}", VALUE
    for suffix, role in (("_min", LOW), ("_max", HIGH)):
        base = name.removesuffix(suffix)
        if base != name and base in GPU_SIGNALS:
            return base, role
    return None


def describe_signal(name: str, event: Event) -> dict[str, Any]:
    """What a chart shows of a signal beside its values.

    Keys: name, label, unit, group (of `GROUPS`), help, event, is_monitored (whether a detector
    reads it).
    """
    is_eval = event is Event.EVAL
    base = name.removeprefix(_EVAL_PREFIX) if is_eval else name.partition("/")[0]
    signal = SIGNALS.get(base) or SIGNALS.get(f"eval_{base}" if is_eval else name)
    if name in MAIN_SIGNALS:
        group = "main"
    elif is_eval:
        group = "evaluation"
    elif event is Event.HEARTBEAT:
        group = "machine"
    else:
        group = _GROUP_BY_SIGNAL.get(name, "logged")
    in_catalogue = signal is not None and (name in SIGNALS or is_eval)
    label = label_of(base) if in_catalogue and signal is not None else name
    if is_eval:
        label = f"{label}, evaluation" if in_catalogue else base
    elif event is Event.HEARTBEAT and name != base:
        label = f"{label_of(base)}, {name.partition('/')[2]}"
    stored = f"eval_{base}" if is_eval else base
    return {
        "name": name,
        "label": label,
        "unit": "" if signal is None else signal.unit,
        "group": group,
        "help": "" if signal is None else signal.help,
        "event": Event.STEP.value if event is Event.SAMPLE else event.value,
        "is_monitored": stored in read_signals() or (base in read_signals() and not is_eval),
    }


def signal_order(description: dict[str, Any]) -> tuple[int, int, str]:
    """The place of a signal among all: by group, then as in the catalogue."""
    name = description["name"]
    return GROUPS.index(description["group"]), _POSITIONS.get(name, len(_POSITIONS)), name


@cache
def read_signals() -> frozenset[str]:
    """The signals that detectors read, by what they need and declare."""
    kinds = load_classes("detectors").values()
    return frozenset().union(
        *({each.signal, *each.needs, *getattr(each, "reads", ())} for each in kinds)
    )
