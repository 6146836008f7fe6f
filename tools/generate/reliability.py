"""Reliability page: writes docs/reliability.md from the faults and guarantees of the tests."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

REGISTRY_PATH = PurePosixPath("tests/chaos/faults.toml")

AREAS: Mapping[str, str] = MappingProxyType(
    {
        "P": "Process of the trainer",
        "R": "One rank",
        "T": "Distributed set-up",
        "A": "Agent",
        "S": "Storage",
        "D": "Delivery",
        "H": "HTTP server",
        "I": "Inputs and concurrency",
        "X": "Security",
    }
)
"""Heading by the letter of a fault's id."""

AUTOMATED, PARTLY, NOT_COVERED = "automated", "partly", "not covered"

_PAGE_HEADER = """\
# Reliability

<!-- Written by `make generate` from `tests/chaos/faults.toml`. -->

What sentinel guarantees, and the tests behind it. Each guarantee follows from numbered faults:
things that go wrong, each with the behaviour that is required then and tests that cause it, on
real processes and sockets wherever that is possible. `make test` runs the tests of the tier
"smoke", `make chaos` those of all faults, and `make test-nodes` those with several nodes, which
need root. `make soak` repeats those that kill processes, and `make fuzz` tries hostile inputs.
"""

_NOT_PROMISED = """\
## What is not guaranteed

- Records can be lost. If the agent is away for longer than a ring lasts, the oldest records are
  overwritten. They are counted in `sentinel_dropped_records_total`. If a rank is killed, values
  that are still on a GPU are lost, and calls of one thread that wait for a call of another.
- A receiver can get a notification twice if it accepts one without an answer, or if the agent is
  killed between sending it and storing that it was sent. Both copies carry the same idempotency
  key.
- While the home directory cannot be used, the history is thinned to what fits in shared memory.
  The end of a machine or container costs what was not copied to the home directory yet: records of
  5 seconds, of up to 30 where a copy takes long, and more while the home directory cannot be used.
  If an agent that starts cannot
  read the database there (no response within 5 s; a disk that is full or read-only, and a database
  of an earlier version), it begins a new one. The earlier database is then set aside.
- No alert is possible while the only node of a run is down, because its agent is down too. If a
  run has [several nodes](nodes.md), the others report it. Prometheus detects it from outside
  (`deploy/prometheus/rules.yml`), and so does a [ping](notifications.md#ping-of-a-healthy-run)
  that stops.
- An agent that is killed together with its training, as at the end of a container, reports nothing.
  The next process does that uses the same home directory and the same receivers, one to seven
  minutes after its start: the agent of another run, such as the next run of that name, or
  [`sentinel serve`](serve.md). A run of more than a day ago is not reported. In a container, the
  home directory must be on a volume that outlives it. If the training is started again with the
  same `SENTINEL_RUN_ID`, that is a restart of the run, and not reported;
  `sentinel agent --run` before it reports the death. To be notified at once, start the training
  with [`sentinel run`](run.md), which starts the agent again and reports the end, or run the agent
  [apart](../deploy/README.md#when-the-agent-must-not-end-with-the-training). Let systemd or
  Kubernetes start `sentinel run` again if that can be killed too, with the same `SENTINEL_RUN_ID`.
- If shared memory is too small for a ring, the ring is smaller or lies in the directory of the
  run.
- The files of a run are private by the mode of their directory; root is not excluded. Without a
  [login](settings.md#access), every user of the machine can read the page and `/metrics` at the
  loopback address, and acknowledge and silence.
- The store through which the agents of [several nodes](nodes.md#who-reaches-the-head) communicate
  has no login and no encryption. Messages have a digest, and others are refused. Its memory is
  limited, but who reaches its port can delay messages, and without a token send and read them if
  the job id is known.
- What is [not tested or not supported](limits.md).
"""


@dataclass(frozen=True)
class Fault:
    """One fault: what goes wrong, the required behaviour, its tests, and what they do not cover.

    `tests` are node ids of pytest.
    """

    id: str
    title: str
    required: str
    tier: str
    tests: tuple[str, ...]
    gap: str

    @property
    def status(self) -> str:
        """Whether tests cover the required behaviour."""
        if not self.tests:
            return NOT_COVERED
        return PARTLY if self.gap else AUTOMATED


@dataclass(frozen=True)
class Guarantee:
    """One guarantee in plain words, and the ids of the faults whose tests show it."""

    title: str
    text: str
    faults: tuple[str, ...]


def reliability_page(root: Path) -> str:
    """Text of docs/reliability.md. Raises ValueError if a guarantee has an untested fault."""
    registry = tomllib.loads((root / REGISTRY_PATH).read_text(encoding="utf-8"))
    faults = [Fault(**{**each, "tests": tuple(each["tests"])}) for each in registry["fault"]]
    guarantees = [
        Guarantee(each["title"], each["text"], tuple(each["faults"]))
        for each in registry["guarantee"]
    ]
    return "\n".join(
        [
            _PAGE_HEADER,
            "## Guarantees\n",
            *_guarantee_lines(guarantees, {fault.id: fault for fault in faults}),
            "",
            _NOT_PROMISED,
            "## Faults\n",
            *_count_lines(faults),
            *(line for letter in AREAS for line in _area_lines(letter, faults)),
            "",
        ]
    )


def _guarantee_lines(guarantees: Iterable[Guarantee], faults: Mapping[str, Fault]) -> Iterator[str]:
    for number, guarantee in enumerate(guarantees, 1):
        untested = [i for i in guarantee.faults if i not in faults or not faults[i].tests]
        if untested or not any(faults[i].status == AUTOMATED for i in guarantee.faults):
            raise ValueError(
                f"The guarantee {guarantee.title!r} is not tested: {', '.join(untested) or 'gaps'}."
            )
        links = ", ".join(f"[{i}](#{i.lower()})" for i in guarantee.faults)
        yield f"{number}. **{guarantee.title}** {guarantee.text} Faults: {links}."


def _count_lines(faults: Iterable[Fault]) -> Iterator[str]:
    counts = Counter((fault.id[0], fault.status) for fault in faults)
    statuses = (AUTOMATED, PARTLY, NOT_COVERED)
    yield f"| faults | number | {' | '.join(statuses)} |"
    yield "|---" * (2 + len(statuses)) + "|"
    for letter, heading in AREAS.items():
        numbers = [counts[letter, status] for status in statuses]
        yield f"| [{heading}](#{_anchor(heading)}) | {sum(numbers)} | {_cells(numbers)} |"
    totals = [sum(counts[letter, status] for letter in AREAS) for status in statuses]
    yield f"| all | {sum(totals)} | {_cells(totals)} |"


def _area_lines(letter: str, faults: Iterable[Fault]) -> Iterator[str]:
    yield f"\n### {AREAS[letter]}\n"
    yield "| id | fault | required | tests | tier | status |"
    yield "|---|---|---|---|---|---|"
    for fault in faults:
        if fault.id[0] == letter:
            status = f"{fault.status}: {fault.gap}" if fault.gap else fault.status
            texts = (_escape(each) for each in (fault.title, fault.required))
            yield (
                f'| <a id="{fault.id.lower()}"></a>{fault.id} | {" | ".join(texts)} '
                f"| {_test_links(fault.tests)} | {fault.tier} | {_escape(status)} |"
            )


def _test_links(tests: Iterable[str]) -> str:
    """Links to the files of the tests."""
    paths = dict.fromkeys(test.partition("::")[0] for test in tests)
    return ", ".join(f"[{PurePosixPath(path).stem}](../{path})" for path in paths)


def _cells(numbers: Iterable[int]) -> str:
    return " | ".join(map(str, numbers))


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
