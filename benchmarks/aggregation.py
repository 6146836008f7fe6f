"""Total cost of bringing 32 numbers of every rank to one place once per step.

    python benchmarks/aggregation.py [--ranks 2 4 8 16] [--rounds 3] [--seconds 1.5]

Real ranks, forked after torch is imported, run blocks of gloo's `gather`, `all_reduce` (96 doubles:
sum, sum of squares, count), `all_gather`, and objects as `all_gather_object` sends them; and blocks
of sentinel: each rank writes to its ring, an agent per node (8 ranks per node, at least two nodes)
reads, spools and sends to the head agent over its `TCPStore`. The order is shuffled per round;
figures are medians over rounds. All are CPU time, summed over the processes named. What idle agents
use is listed separately. 128 ranks need about 12 GiB. Prints Markdown; writes
results/aggregation.json if all `--methods` were measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from aggregation_nodes import Nodes
from aggregation_ranks import BURST, EMPTY, SENTINEL, Plan, Rank, RankLocation
from loopback import enter_network_namespace

RESULTS = Path(__file__).parent / "results" / "aggregation.json"
METHODS = ("gather", "all_reduce", "all_gather", "objects")
RANKS_PER_NODE = 8
"""Ranks per node."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--own-seconds", type=float, default=8.0, help="a block of sentinel")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--methods", nargs="*", default=METHODS)
    args = parser.parse_args()
    is_isolated = enter_network_namespace()
    worlds = {str(world): measure(world, args, counted=is_isolated) for world in args.ranks}
    # Results of other sizes are kept.
    earlier = json.loads(RESULTS.read_text())["worlds"] if RESULTS.exists() else {}
    results = {**earlier, **worlds}
    results = {key: results[key] for key in sorted(results, key=int)}
    if {*args.methods} == {*METHODS}:
        RESULTS.parent.mkdir(exist_ok=True)
        result = {"torch": torch.__version__, "worlds": results}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(results))


def measure(world: int, args: argparse.Namespace, *, counted: bool) -> dict[str, Any]:
    local = min(RANKS_PER_NODE, max(1, world // 2))
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Nodes(Path(folder), world, local) as nodes,
    ):
        rates, methods = tuple(args.rates), tuple(args.methods)
        plan = Plan(
            free_port(), args.rounds, args.seconds, args.own_seconds, rates, methods,
            nodes.pids, nodes.head,
        )  # fmt: skip
        blocks = run_ranks(nodes.locations(), plan)
        ranks_per_step = nodes.ranks_per_step()
    results = {method: gloo_costs(method, blocks, world) for method in args.methods}
    result = {
        "nodes": world // local,
        "load": round(os.getloadavg()[0], 1),
        "rounds": args.rounds,
        "gloo": results,
        "ours": {
            name: sentinel_costs(rate, blocks, world - local)
            for name, rate in {"burst": BURST, **{f"{r:g}": r for r in args.rates}}.items()
        },
        "idle": idle_costs(blocks, world // local),
        "records": world * len(ranks_per_step),
        "lost": sum(world - count for count in ranks_per_step),
    }
    if not counted:
        for method in (*results.values(), *result["ours"].values()):
            method.pop("bytes", None)
            method.pop("packets", None)
    return result


def run_ranks(locations: Iterable[RankLocation], plan: Plan) -> list[dict[str, Any]]:
    """Run every rank as a process; return what rank 0 measured."""
    context = multiprocessing.get_context("fork")
    results, sender = context.Pipe(duplex=False)
    ranks = [context.Process(target=_rank, args=(location, plan, sender)) for location in locations]
    for rank in ranks:
        rank.start()
    sender.close()
    try:
        blocks: list[dict[str, Any]] = results.recv()
    except EOFError:
        raise SystemExit("The ranks exited before they had finished.") from None
    for rank in ranks:
        rank.join()
    return blocks


def _rank(location: RankLocation, plan: Plan, sender: Connection) -> None:
    blocks = Rank(location, plan).run()
    if location.rank == 0:
        sender.send(blocks)
    # Exit without cleanup: groups of 128 take long to shut down.
    os._exit(0)


def gloo_costs(method: str, blocks: list[dict[str, Any]], world: int) -> dict[str, float]:
    """Medians over rounds: CPU time of all ranks, wall time, bytes and packets per rank."""
    empty = [block for block in blocks if block["method"] == EMPTY]
    own_blocks = [block for block in blocks if block["method"] == method]
    pairs = list(zip(own_blocks, empty, strict=True))

    def median_per_run(key: str) -> float:
        return median(max(0.0, m[key] - e[key]) / m["times"] for m, e in pairs)

    return {
        "all_ranks_cpu_ms": round(1e3 * median_per_run("cpu"), 3),
        "wall_ms": round(1e3 * median(m["wall"] / m["times"] for m in own_blocks), 3),
        "bytes": round(median_per_run("bytes") / world),
        "packets": round(median_per_run("packets") / world, 1),
        "times": sum(m["times"] for m in own_blocks),
    }


def sentinel_costs(
    rate: float, blocks: list[dict[str, Any]], remote_ranks: int
) -> dict[str, float]:
    """The same for sentinel, without what idle agents use, which is listed separately."""
    own_blocks = [block for block in blocks if block["method"] == SENTINEL]
    busy = [block for block in own_blocks if block["rate"] == rate]
    idle = [block for block in own_blocks if block["rate"] == 0.0]
    pairs = list(zip(busy, idle, strict=True))

    def median_per_run(key: str) -> float:
        return median((b[key] - i[key]) / b["times"] for b, i in pairs)

    return {
        "ranks_cpu_ms": round(1e3 * median(b["cpu"] / b["times"] for b in busy), 3),
        "node_agents_cpu_ms": round(1e3 * median_per_run("nodes"), 2),
        "head_agent_cpu_ms": round(1e3 * median_per_run("head"), 2),
        "bytes": round(median_per_run("bytes") / remote_ranks),
        "packets": round(median_per_run("packets") / remote_ranks, 2),
        "times": sum(b["times"] for b in busy),
    }


def idle_costs(blocks: list[dict[str, Any]], nodes: int) -> dict[str, float]:
    """Use of an idle agent: CPU in percent of a core, bytes per second."""
    idle = [block for block in blocks if block["method"] == SENTINEL and block["rate"] == 0.0]
    shares = {
        "node_agent_percent": 100 * median(i["nodes"] / i["seconds"] for i in idle) / (nodes - 1),
        "head_agent_percent": 100 * median(i["head"] / i["seconds"] for i in idle),
        "bytes_a_second": median(i["bytes"] / i["seconds"] for i in idle) / (nodes - 1),
    }
    return {name: round(share, 1) for name, share in shares.items()}


def table(worlds: dict[str, Any]) -> str:
    """CPU time of all senders per step, in milliseconds."""
    head = (
        "ranks", "`all_gather`", "`all_reduce`", "objects", "`gather`",
        "ours: ranks, in a row", "10 a second",
        "ours: node agents, in a row", "10 a second", "1 a second",
    )  # fmt: skip
    lines = [
        f"| {' | '.join(head)} |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for world, result in worlds.items():
        gloo, sentinel = result["gloo"], result["ours"]
        order = ("all_gather", "all_reduce", "objects", "gather")
        cells = [
            f"{gloo[method]['all_ranks_cpu_ms']:,.1f}" if method in gloo else "" for method in order
        ]
        cells += [
            f"**{sentinel['burst']['ranks_cpu_ms']:.2f}**",
            f"{sentinel['10']['ranks_cpu_ms']:.1f}" if "10" in sentinel else "",
        ]
        cells += [
            f"{sentinel[rate]['node_agents_cpu_ms']:.1f}" if rate in sentinel else ""
            for rate in ("burst", "10", "1")
        ]
        lines.append(f"| {world} | {' | '.join(cells)} |")
    return "\n".join(lines)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
