"""Writes the tables of docs/scale.md from the results of five benchmarks.

    python benchmarks/scale_page.py

They are `aggregation.py`, `fleet.py`, `head.py`, `agent_steps.py` and `capacity.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "scale.md"
GLOO = ("gather", "all_gather", "all_reduce", "objects")
SCRAPE_SECONDS = 15.0
MAX_MEASURABLE_RANKS = 32
"""Ranks beyond which agents, which run at low priority, could not keep up on two cores."""
TITLES = ("`gather`", "`all_gather`", "`all_reduce`", "objects")


def table(head: list[str], body: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def result(name: str) -> dict[str, Any]:
    """The result file of that benchmark."""
    results: dict[str, Any] = json.loads((FOLDER / "results" / f"{name}.json").read_text())
    return results


def senders_table(results: dict[str, Any]) -> str:
    """CPU time of all senders for one step, in milliseconds, by number of ranks."""
    head = ["ranks", "rings", "followers", *TITLES]
    body = [
        [
            world,
            f"**{measured['ours']['burst']['ranks_cpu_ms']:.2f}**",
            _agents(world, measured["ours"]["burst"]),
            *(f"{measured['gloo'][method]['all_ranks_cpu_ms']:,.1f}" for method in GLOO),
        ]
        for world, measured in results["worlds"].items()
    ]
    return table(head, body)


def _agents(world: str, ours: dict[str, float], unit: str = "") -> str:
    """CPU time of the node agents, if the ranks left them enough of the machine to keep up."""
    if int(world) > MAX_MEASURABLE_RANKS:
        return ""
    return f"{max(0.0, ours['node_agents_cpu_ms']):.1f}{unit}"


def paced_table(results: dict[str, Any]) -> str:
    """Sentinel at the pace of a training, in milliseconds per step; use of idle agents."""
    head = ["ranks", "one rank, 10 steps/s", "followers, 10 steps/s", "one follower, idle"]
    body = [
        [
            world,
            f"{1e3 * measured['ours']['10']['ranks_cpu_ms'] / int(world):.0f} µs",
            _agents(world, measured["ours"]["10"], " ms"),
            f"{measured['idle']['node_agent_percent']:.1f} % of a core",
        ]
        for world, measured in results["worlds"].items()
    ]
    return table(head, body)


def wire_table(results: dict[str, Any], fleet: dict[str, Any]) -> str:
    """Bytes per rank and step on the network."""
    row = fleet["rows"][0]
    head = ["ranks", "agents", *TITLES]
    body = [
        [
            world,
            f"{row['bytes_a_rank_and_step']:,}",
            *(f"{measured['gloo'][method]['bytes']:,}" for method in GLOO),
        ]
        for world, measured in results["worlds"].items()
    ]
    return table(head, body)


def fleet_table(results: dict[str, Any]) -> str:
    """Load and delay of a head, by number of ranks."""
    head = ["ranks", "nodes", "CPU, of a core", "memory", "delay, median", "maximum", "late"]
    body = [
        [
            f"{row['ranks']:,}",
            f"{row['nodes']:,}",
            f"{row['cpu_percent']:.0f} %",
            f"{row['resident_mb']} MB",
            *(
                "not measured" if row[delay] is None else f"{row[delay]:.1f} s"
                for delay in ("delay_s_median", "delay_s_most")
            ),
            f"{row['lost']:,}",
        ]
        for row in results["rows"]
    ]
    return table(head, body)


def head_table(results: dict[str, Any]) -> str:
    """CPU time of the head for a step, of its server and of its loop."""
    body = [
        [
            f"{row['ranks']:,}",
            f"{row['nodes']:,}",
            f"{row['server']:.0f} ms",
            f"{row['loop']:.0f} ms",
            f"{(row['server'] + row['loop']) / 10:.1f} %",
        ]
        for row in results["rows"]
    ]
    return table(["ranks", "nodes", "server", "loop", "of a core, at 1 step/s"], body)


def cost_model_text(results: dict[str, Any]) -> str:
    """CPU time of the head as a linear model of nodes and ranks."""
    law = results["law"]
    return (
        f"At a step of {results['signals']} signals a second the head takes "
        f"{law['constant_ms']:.0f} ms, plus {law['node_us']:.0f} µs per node and "
        f"{law['rank_us']:.1f} µs per rank. No row is off by more than {law['off_percent']:.0f} %."
    )


def aligning_table(results: dict[str, Any]) -> str:
    """CPU time in which the head aligns and combines one step, by number of ranks and pace."""
    body = [
        [f"{row['ranks']:,}", f"{row['slow_ms']:.1f} ms", f"{row['fast_ms']:.1f} ms"]
        for row in results["aligned"]
    ]
    return table(["ranks", "1 step/s", "5 steps/s"], body)


def capacity_table(results: dict[str, Any]) -> str:
    """Series, size and CPU of /metrics of runs and of 1,000 ranks, and what Prometheus stores."""
    rows, node = results["rows"], results["node"]
    smallest, largest = rows[0], rows[-1]
    followers = largest["nodes"] - 1
    runs = round(1000 / smallest["ranks"])
    parts = ("series", "bytes", "compressed_bytes", "scrape_ms", "step_ms")
    many = {part: runs * smallest[part] for part in parts}
    one = {part: largest[part] + followers * node.get(part, 0.0) for part in parts}
    lines = [
        *((f"run of {_ranks(row)}{', its head' * (row['nodes'] > 1)}", row) for row in rows),
        ("each other node of a run, with 8 GPUs", node),
        (f"**{runs} runs** of {_ranks(smallest)}", many),
        (f"**one run** of {_ranks(largest)}, all nodes", one),
    ]
    head = ["", "series", "`/metrics`", "compressed", "scrape", "step", "Prometheus a day"]
    body = [
        [
            title,
            f"{row['series']:,}",
            *(f"{row[part] / 1e3:,.0f} kB" for part in ("bytes", "compressed_bytes")),
            f"{row['scrape_ms']:,.1f} ms",
            f"{row['step_ms']:,.1f} ms" if "step_ms" in row else "",
            _stored_a_day(row["series"], results["bytes_per_sample"]),
        ]
        for title, row in lines
    ]
    return table(head, body)


def _ranks(row: dict[str, Any]) -> str:
    nodes = f" on {row['nodes']} nodes" if row["nodes"] > 1 else ""
    return f"{row['ranks']:,} ranks{nodes}"


def _stored_a_day(series: int, bytes_per_sample: float | None) -> str:
    if bytes_per_sample is None:
        return "not measured"
    return f"{series * 86400 / SCRAPE_SECONDS * bytes_per_sample / 1e6:,.0f} MB"


def capacity_text(results: dict[str, Any]) -> str:
    """Size of a sample in Prometheus, and times of large scrapes."""
    large = results["large"]
    return (
        f"A sample takes {results['bytes_per_sample']} bytes in a block of two hours. "
        f"{large['scrapes']} scrapes of {large['series']:,} series over HTTP "
        f"({large['bytes'] / 1e6:.1f} MB, {large['compressed_bytes'] / 1e3:.0f} kB compressed) "
        f"took {large['p50_ms']:.0f} ms (median) and {large['p99_ms']:.0f} ms (99th percentile), "
        f"of which {large['cpu_ms']:.0f} ms were CPU; the load average was {results['load']:.0f}."
    )


def load_text(aggregation: dict[str, Any], fleet: dict[str, Any]) -> str:
    """Load of the machine."""
    loads = [row["load"] for row in (*aggregation["worlds"].values(), *fleet["rows"])]
    return f"Load average was {min(loads):.0f} to {max(loads):.0f}."


def torch_table(results: dict[str, Any]) -> str:
    """Additional memory and CPU of an agent in a cluster."""
    agent = results["agent"]
    head = ["", "memory", "CPU of the start"]
    body = [
        [name, f"{agent[key]['resident_mb']:.0f} MB", f"{agent[key]['cpu_s']:.1f} s"]
        for name, key in (("single node, without torch", "alone"), ("with torch", "torch"))
    ]
    return table(head, body)


def tables() -> dict[str, str]:
    """Each generated table or sentence, by the name of its marker in the page."""
    aggregation, fleet_results = result("aggregation"), result("fleet")
    return {
        "senders": senders_table(aggregation),
        "paced": paced_table(aggregation),
        "wire": wire_table(aggregation, fleet_results),
        "fleet": fleet_table(fleet_results),
        "aligning": aligning_table(result("agent_steps")),
        "head": head_table(result("head")),
        "law": cost_model_text(result("head")),
        "torch": torch_table(fleet_results),
        "capacity": capacity_table(result("capacity")),
        "capacity text": capacity_text(result("capacity")),
        "load": load_text(aggregation, fleet_results),
    }


def place(page: str, name: str) -> tuple[str, str, str]:
    """The page before, between and after the markers. Raises ValueError if they are missing."""
    start, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
    before, start_marker, rest = page.partition(start)
    within, end_marker, after = rest.partition(end)
    if not start_marker or not end_marker:
        raise ValueError(f"{PAGE.name} has no marker {name}: add '{start.strip()}' and its end")
    return before + start, within, end + after


def main() -> None:
    page = PAGE.read_text()
    for name, text in tables().items():
        before, _, after = place(page, name)
        page = before + text + after
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
