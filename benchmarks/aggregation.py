"""Total cost of bringing 32 numbers of every rank to one place once per step.

    python benchmarks/aggregation.py [--ranks 2 4 8 16] [--rounds 3] [--seconds 1.5]

Real ranks, forked after torch is imported, run blocks of gloo's `gather`, `all_reduce` (96 doubles:
sum, sum of squares, count), `all_gather`, and objects as `all_gather_object` sends them; and blocks
of sentinel: each rank writes to its ring, an agent per node (8 ranks per node, at least two nodes)
reads, spools and sends to the head agent over its `TCPStore`. The order is shuffled per round;
figures are medians over rounds. All are CPU time, summed over the processes named. What idle agents
use is listed separately. 128 ranks need about 12 GiB. Prints Markdown; writes
results/aggregation.json if all `--ways` were measured.
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
from aggregation_ranks import BURST, EMPTY, OURS, Place, Plan, Rank
from loopback import alone

RESULTS = Path(__file__).parent / "results" / "aggregation.json"
WAYS = ("gather", "all_reduce", "all_gather", "objects")
NODE = 8
"""Ranks per node."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--ways", nargs="*", default=WAYS)
    args = parser.parse_args()
    counted = alone()
    worlds = {str(world): measured(world, args, counted=counted) for world in args.ranks}
    # Results of other sizes are kept.
    known = json.loads(RESULTS.read_text())["worlds"] if RESULTS.exists() else {}
    told = {**known, **worlds}
    told = {key: told[key] for key in sorted(told, key=int)}
    if {*args.ways} == {*WAYS}:
        RESULTS.parent.mkdir(exist_ok=True)
        found = {"torch": torch.__version__, "worlds": told}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(told))


def measured(world: int, args: argparse.Namespace, *, counted: bool) -> dict[str, Any]:
    local = min(NODE, max(1, world // 2))
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Nodes(Path(folder), world, local) as nodes,
    ):
        rates, ways = tuple(args.rates), tuple(args.ways)
        plan = Plan(free_port(), args.rounds, args.seconds, rates, ways, nodes.pids, nodes.head)
        blocks = forked(nodes.places(), plan)
        heard = nodes.heard()
    told = {way: of_gloo(way, blocks, world) for way in args.ways}
    found = {
        "nodes": world // local,
        "load": round(os.getloadavg()[0], 1),
        "rounds": args.rounds,
        "gloo": told,
        "ours": {
            name: of_ours(rate, blocks, world - local)
            for name, rate in {"burst": BURST, **{f"{r:g}": r for r in args.rates}}.items()
        },
        "idle": of_idle(blocks, world // local),
        "records": world * len(heard),
        "lost": sum(world - count for count in heard),
    }
    if not counted:
        for way in (*told.values(), *found["ours"].values()):
            way.pop("bytes", None)
            way.pop("packets", None)
    return found


def forked(places: Iterable[Place], plan: Plan) -> list[dict[str, Any]]:
    """Run every rank as a process; return what rank 0 measured."""
    context = multiprocessing.get_context("fork")
    told, tell = context.Pipe(duplex=False)
    ranks = [context.Process(target=_rank, args=(place, plan, tell)) for place in places]
    for rank in ranks:
        rank.start()
    tell.close()
    try:
        blocks: list[dict[str, Any]] = told.recv()
    except EOFError:
        raise SystemExit("The ranks exited before they had finished.") from None
    for rank in ranks:
        rank.join()
    return blocks


def _rank(place: Place, plan: Plan, tell: Connection) -> None:
    blocks = Rank(place, plan).run()
    if place.rank == 0:
        tell.send(blocks)
    # Exit without cleanup: groups of 128 take long to shut down.
    os._exit(0)


def of_gloo(way: str, blocks: list[dict[str, Any]], world: int) -> dict[str, float]:
    """Medians over rounds: CPU time of all ranks, wall time, bytes and packets per rank."""
    empty = [block for block in blocks if block["way"] == EMPTY]
    mine = [block for block in blocks if block["way"] == way]
    pairs = list(zip(mine, empty, strict=True))

    def each(what: str) -> float:
        return median(max(0.0, m[what] - e[what]) / m["times"] for m, e in pairs)

    return {
        "all_ranks_cpu_ms": round(1e3 * each("cpu"), 3),
        "wall_ms": round(1e3 * median(m["wall"] / m["times"] for m in mine), 3),
        "bytes": round(each("bytes") / world),
        "packets": round(each("packets") / world, 1),
        "times": sum(m["times"] for m in mine),
    }


def of_ours(rate: float, blocks: list[dict[str, Any]], away: int) -> dict[str, float]:
    """The same for sentinel, without what idle agents use, which is listed separately."""
    mine = [block for block in blocks if block["way"] == OURS]
    busy = [block for block in mine if block["rate"] == rate]
    idle = [block for block in mine if block["rate"] == 0.0]
    pairs = list(zip(busy, idle, strict=True))

    def each(what: str) -> float:
        return median((b[what] - i[what]) / b["times"] for b, i in pairs)

    return {
        "ranks_cpu_ms": round(1e3 * median(b["cpu"] / b["times"] for b in busy), 3),
        "node_agents_cpu_ms": round(1e3 * each("nodes"), 2),
        "head_agent_cpu_ms": round(1e3 * each("head"), 2),
        "bytes": round(each("bytes") / away),
        "packets": round(each("packets") / away, 2),
        "times": sum(b["times"] for b in busy),
    }


def of_idle(blocks: list[dict[str, Any]], nodes: int) -> dict[str, float]:
    """Use of an idle agent: CPU in percent of a core, bytes per second."""
    idle = [block for block in blocks if block["way"] == OURS and block["rate"] == 0.0]
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
    for world, found in worlds.items():
        gloo, ours = found["gloo"], found["ours"]
        order = ("all_gather", "all_reduce", "objects", "gather")
        cells = [f"{gloo[way]['all_ranks_cpu_ms']:,.1f}" if way in gloo else "" for way in order]
        cells += [f"**{ours['burst']['ranks_cpu_ms']:.2f}**", f"{ours['10']['ranks_cpu_ms']:.1f}"]
        cells += [f"{ours[rate]['node_agents_cpu_ms']:.1f}" for rate in ("burst", "10", "1")]
        lines.append(f"| {world} | {' | '.join(cells)} |")
    return "\n".join(lines)


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
