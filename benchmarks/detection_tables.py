"""Outcomes as Markdown tables, written into the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median

from detection_causes import Diagnoses
from detection_exact import EXACT
from detection_families import FAULTY, HEALTHY_LOSSES, HEALTHY_POLICIES, MEANS
from detection_intervals import format_rate, format_share
from detection_run import FAULTS
from detection_score import NONE, Detections, FalseAlarms, format_delays
from detection_suite import Outcome
from page_tables import rows
from peers import PEERS
from support.synthetic_runs import SEVERITIES

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
EXCLUDED_FROM_MEAN = ("oscillation", "loss_plateau", *EXACT)
"""Faults outside of the mean: at info by design, a statement rather than an alarm, exact."""

FAULTS_IN_MEAN = tuple(fault for fault in FAULTS if fault not in EXCLUDED_FROM_MEAN)

GROUPS = {
    "RL": ("rl",),
    "supervised": ("sft",),
    "families of RL": (*HEALTHY_POLICIES, f"rl{MEANS}"),
    "supervised families": (*HEALTHY_LOSSES, f"sft{MEANS}"),
}
"""Columns of false alarms: the kinds of run in each."""


def title(evaluator: str) -> str:
    return "**sentinel**" if evaluator == "ours" else PEERS[evaluator].title


def false_alarms(outcomes: dict[str, Outcome]) -> str:
    """Alarms per 10,000 healthy points, by evaluator and group of kinds."""
    head = ["per 10,000 healthy points", *GROUPS, "critical"]
    body = []
    for evaluator, outcome in outcomes.items():
        groups = [_pooled(outcome, kinds) for kinds in GROUPS.values()]
        is_ours = evaluator == "ours"
        critical = str(sum(group.critical for group in groups)) if is_ours else NONE
        cells = [format_rate(group.warned, group.points) for group in groups]
        body.append([title(evaluator), *cells, critical])
    return rows(head, body)


def _pooled(outcome: Outcome, kinds: Iterable[str]) -> FalseAlarms:
    """False alarms of several kinds together, healthy points before faults included."""
    total = FalseAlarms()
    for kind in kinds:
        each = outcome.false_alarms.get(kind, FalseAlarms())
        total.points, total.warned = total.points + each.points, total.warned + each.warned
        total.critical += each.critical
        total.plateaus += each.plateaus
        total.wrong_plateaus += each.wrong_plateaus
        for name, count in each.by_name.items():
            total.by_name[name] = total.by_name.get(name, 0) + count
        total.diagnoses.merge(each.diagnoses)
    return total


def by_kind(outcome: Outcome) -> str:
    """False alarms of sentinel by kind of run."""
    kinds = [kind for kind in outcome.false_alarms if kind not in FAULTY]
    body = [_by_kind(kind, outcome.false_alarms[kind]) for kind in kinds]
    pooled = _pooled(outcome, FAULTY)
    body.append(_by_kind("before the faults of families", pooled))
    head = ["kind of run", "alarms", "points", "per 10,000", "critical", "by detector"]
    return rows(head, body)


def _by_kind(kind: str, alarms: FalseAlarms) -> list[str]:
    detectors = ", ".join(f"{name} {count}" for name, count in sorted(alarms.by_name.items()))
    return [
        kind.replace("_", " "),
        str(alarms.warned),
        f"{alarms.points:,}",
        format_rate(alarms.warned, alarms.points),
        str(alarms.critical),
        detectors or NONE,
    ]


def recall(outcomes: dict[str, Outcome]) -> str:
    """Share of detected faults over all kinds; delay over all of them."""
    head = ["all kinds of fault", *SEVERITIES, "median delay of the severe, in points"]
    return rows(head, [[title(j), *_recall(o)] for j, o in outcomes.items()])


def _recall(outcome: Outcome) -> list[str]:
    cells = []
    for severity in SEVERITIES:
        each = [outcome.detections[fault][severity] for fault in FAULTS_IN_MEAN]
        cells.append(format_share(sum(len(d.warned) for d in each), sum(d.runs for d in each)))
    delays = [d for f in FAULTS_IN_MEAN for d in outcome.detections[f]["severe"].warned]
    return [*cells, f"{median(delays):.0f}" if delays else NONE]


def faults(outcome: Outcome) -> str:
    """Each fault as sentinel detects it: share, then median and 90th percentile of the delay."""
    body = [
        [fault, *(_cell(grades.get(severity)) for severity in SEVERITIES), _per_fault(grades)]
        for fault, grades in outcome.detections.items()
        if fault in FAULTS or fault in EXACT
    ]
    return rows(["", *SEVERITIES, "incidents, cases"], body)


def families(outcome: Outcome) -> str:
    """Faults of the families and of logs of means: share found, delay."""
    body = []
    for fault, grades in outcome.detections.items():
        if fault in FAULTS or fault in EXACT:
            continue
        each = list(grades.values())
        found, runs = sum(len(d.warned) for d in each), sum(d.runs for d in each)
        opened = sum(len(d.opened) for d in each)
        info = f" + {opened - found} info" if opened > found else ""
        delays = format_delays([delay for d in each for delay in d.warned])
        body.append([fault.replace("_", " "), format_share(found, runs) + info, delays])
    return rows(["", "found", "delay, median / 90th percentile"], body)


def _cell(detections: Detections | None) -> str:
    if detections is None:
        return ""
    found, opened = len(detections.warned), len(detections.opened)
    info = f" + {opened - found} info" if opened > found else ""
    delays = f", {format_delays(detections.warned)}" if found else ""
    return f"{format_share(found, detections.runs)}{info}{delays}"


def _per_fault(grades: dict[str, Detections]) -> str:
    notifications = [count for detections in grades.values() for count in detections.notifications]
    cases = [count for detections in grades.values() for count in detections.cases]
    return f"{fmean(notifications):.1f}, {fmean(cases):.1f}" if notifications else NONE


def diagnoses(outcome: Outcome) -> str:
    """Diagnoses by fault: right and wrong ones, and cases without a diagnosis."""
    body, total = [], Diagnoses()
    for fault, grades in outcome.detections.items():
        counted = Diagnoses()
        for detections in grades.values():
            counted.merge(detections.diagnoses)
        total.merge(counted)
        if counted.cases:
            body.append([fault.replace("_", " "), *_diagnoses(counted)])
    healthy = _pooled(outcome, [k for k in outcome.false_alarms if k not in FAULTY]).diagnoses
    total.merge(healthy)
    body.append(["healthy runs", *_diagnoses(healthy)])
    body.append(["**all**", *_diagnoses(total)])
    return rows(["", "cases", "right of the named", "wrong", "wrong and critical"], body)


def _diagnoses(counted: Diagnoses) -> list[str]:
    wrong = ", ".join(f"{cause} {count}" for cause, count in counted.wrong.most_common(3))
    more = counted.wrong.total() - sum(count for _, count in counted.wrong.most_common(3))
    wrong += f" and {more} more" if more else ""
    share = format_share(counted.right, counted.given)
    return [str(counted.cases), share, wrong or NONE, str(counted.wrong_critical)]


def plateau(outcome: Outcome) -> str:
    """Statements that the loss has stopped falling: found where true, and wrong ones."""
    found = outcome.detections["loss_plateau"]["severe"]
    healthy = _pooled(outcome, outcome.false_alarms)
    body = [
        [
            format_share(len(found.warned), found.runs),
            format_share(len(found.opened), found.runs),
            f"{healthy.wrong_plateaus} of {healthy.plateaus}",
        ]
    ]
    return rows(["warning where true", "warning or info where true", "wrong in healthy runs"], body)


def by_fault(outcomes: dict[str, Outcome]) -> str:
    """The moderate case of each fault (severe, if it has no severities), by evaluator."""
    names = [*FAULTS, *EXACT]
    body = [[fault, *(_short(o.detections[fault]) for o in outcomes.values())] for fault in names]
    return rows([f"of {_runs(outcomes)} runs", *map(title, outcomes)], body)


def _runs(outcomes: dict[str, Outcome]) -> int:
    return next(iter(outcomes.values())).detections["kl_blowup"]["moderate"].runs


def _short(grades: dict[str, Detections]) -> str:
    return _count(grades.get("moderate") or grades["severe"])


def _count(detections: Detections) -> str:
    if not detections.warned:
        return NONE
    return f"{len(detections.warned)}, {median(detections.warned):.0f}"


def early(outcomes: dict[str, Outcome]) -> str:
    """Severe faults at point 30 of a run of 190 to 300."""
    body = [[title(j), *map(_count, o.early.values())] for j, o in outcomes.items()]
    head = f"of {_runs(outcomes)} runs, at point 30"
    return rows([head, *next(iter(outcomes.values())).early], body)


def collapse(outcome: Outcome) -> str:
    """Policy collapse: lead over the reward's cliff, and whether it is one notification."""
    head = ["", "warned", "median lead, of the lag", "one notification", "KL first", "right name"]
    grades = outcome.detections["policy_collapse"].items()
    return rows(head, [[severity, *_collapse(detections)] for severity, detections in grades])


def _collapse(detections: Detections) -> list[str]:
    warned = format_share(len(detections.warned), detections.runs)
    if not detections.warned:
        return [warned, NONE, NONE, NONE, NONE]
    shares = [[cases == 1 for cases in detections.cases], detections.roots, detections.names]
    lead = f"{100 * median(detections.leads):+.0f} %"
    return [warned, lead, *(format_share(sum(x), len(x)) for x in shares)]


NEED_OURS = ("by-kind", "faults", "families", "diagnoses", "plateau", "collapse")
"""Tables of sentinel alone."""

SYNTHETIC: dict[str, Callable[[dict[str, Outcome]], str]] = {
    "false-alarms": false_alarms,
    "recall": recall,
    "by-kind": lambda outcomes: by_kind(outcomes["ours"]),
    "faults": lambda outcomes: faults(outcomes["ours"]),
    "families": lambda outcomes: families(outcomes["ours"]),
    "diagnoses": lambda outcomes: diagnoses(outcomes["ours"]),
    "plateau": lambda outcomes: plateau(outcomes["ours"]),
    "by-fault": by_fault,
    "early": early,
    "collapse": lambda outcomes: collapse(outcomes["ours"]),
}
"""Tables by the name that marks their place in the page."""
