"""The tables of docs/scale.md, from the result files of `aggregation.py` and `fleet.py`.

python benchmarks/scale_page.py     (writes them into the page)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "scale.md"
GLOO = ("gather", "all_gather", "all_reduce", "objects")
LEGIBLE = 32
"""Ranks beyond which agents, that make way for others, fell behind on two cores."""
TITLES = ("`gather`", "`all_gather`", "`all_reduce`", "objects")


def table(head: list[str], body: list[list[str]]) -> str:
    """A table whose first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def result(name: str) -> dict[str, Any]:
    """What the benchmark of that name found."""
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return found


def senders(found: dict[str, Any]) -> str:
    """CPU of all senders for one step, in milliseconds, by number of ranks."""
    head = ["ranks", "ours: ranks", "ours: node agents", *TITLES]
    body = [
        [
            world,
            f"**{told['ours']['burst']['ranks_cpu_ms']:.2f}**",
            _agents(world, told["ours"]["burst"]),
            *(f"{told['gloo'][way]['all_ranks_cpu_ms']:,.1f}" for way in GLOO),
        ]
        for world, told in found["worlds"].items()
    ]
    return table(head, body)


def _agents(world: str, ours: dict[str, float], unit: str = "") -> str:
    """CPU of the node agents, where ranks left them enough of the machine to keep up."""
    if int(world) > LEGIBLE:
        return ""
    return f"{max(0.0, ours['node_agents_cpu_ms']):.1f}{unit}"


def paced(found: dict[str, Any]) -> str:
    """Ours at the pace of a training, in milliseconds a step; what it takes while idle."""
    head = ["ranks", "one rank, 10 steps/s", "node agents, 10 steps/s", "a node's agent, idle"]
    body = [
        [
            world,
            f"{1e3 * told['ours']['10']['ranks_cpu_ms'] / int(world):.0f} µs",
            _agents(world, told["ours"]["10"], " ms"),
            f"{told['idle']['node_agent_percent']:.1f} % of a core",
        ]
        for world, told in found["worlds"].items()
    ]
    return table(head, body)


def wire(found: dict[str, Any], fleet: dict[str, Any]) -> str:
    """Bytes of a rank and step on the way to one place."""
    row = fleet["rows"][0]
    head = ["ranks", "ours, in parcels", *TITLES]
    body = [
        [
            world,
            f"{row['bytes_a_rank_and_step']:,}",
            *(f"{told['gloo'][way]['bytes']:,}" for way in GLOO),
        ]
        for world, told in found["worlds"].items()
    ]
    return table(head, body)


def fleet(found: dict[str, Any]) -> str:
    """What a head takes and gives, by number of ranks."""
    head = ["ranks", "nodes", "CPU, of a core", "memory", "delay, median", "most", "late"]
    body = [
        [
            f"{row['ranks']:,}",
            f"{row['nodes']:,}",
            f"{row['cpu_percent']:.0f} %",
            f"{row['resident_mb']} MB",
            f"{row['delay_s_median']:.1f} s",
            f"{row['delay_s_most']:.1f} s",
            f"{row['lost']:,}",
        ]
        for row in found["rows"]
    ]
    return table(head, body)


def law(found: dict[str, Any]) -> str:
    """CPU of the head as a sum."""
    told = found["law"]
    constant, node, rank = (told[f"{of}_percent"] for of in ("constant", "node", "rank"))
    return (
        f"At one step a second of {told['signals']} signals the head takes {constant:.1f} % of a "
        f"core, {node:.3f} % more for each node and {rank:.4f} % for each rank: "
        f"{1e4 * rank:.0f} µs a record, {1e4 * node:.0f} µs a node and second. They come of "
        "the rows above in which the head kept up; they are as good as those are few."
    )


def load(aggregation: dict[str, Any], fleet: dict[str, Any]) -> str:
    """How busy the machine was."""
    seen = [row["load"] for row in (*aggregation["worlds"].values(), *fleet["rows"])]
    return f"Load average was {min(seen):.0f} to {max(seen):.0f}."


def torch(found: dict[str, Any]) -> str:
    """What an agent that meets others takes more than one that is alone."""
    told = found["agent"]
    head = ["", "memory", "CPU of the start"]
    body = [
        [name, f"{told[key]['resident_mb']:.0f} MB", f"{told[key]['cpu_s']:.1f} s"]
        for name, key in (("alone", "alone"), ("with torch loaded", "torch"))
    ]
    return table(head, body)


def tables() -> dict[str, str]:
    """Each table, or sentence, by the name that marks its place in the page."""
    aggregation, found = result("aggregation"), result("fleet")
    return {
        "senders": senders(aggregation),
        "paced": paced(aggregation),
        "wire": wire(aggregation, found),
        "fleet": fleet(found),
        "law": law(found),
        "torch": torch(found),
        "load": load(aggregation, found),
    }


def place(page: str, name: str) -> tuple[str, str, str]:
    """The page before, within and after a mark; ValueError where there is none."""
    start, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
    before, found, rest = page.partition(start)
    within, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{PAGE.name} has no place for {name}: add '{start.strip()}' and its end")
    return before + start, within, end + after


def main() -> None:
    page = PAGE.read_text()
    for name, text in tables().items():
        before, _, after = place(page, name)
        page = before + text + after
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
