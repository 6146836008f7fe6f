"""Notifications of one fault: how soon the first arrives, and how many there are.

    python benchmarks/notifications.py --repeats 10 [--only nan,killed]

Each run is a process of its own with its agent, two sinks (a webhook, and a Slack bot that can
change its message) and a receiver on this machine. The run is healthy for 300 steps of 20 ms; then
it has one fault. Seconds count from the fault, or from the record in which it is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from agent import wait_for_end

STEP_SECONDS = 0.02
HEALTHY_STEPS = 300
FAULTY_STEPS = 250
LINGER_SECONDS = 4.0
"""How long the agent stays after the end of its run."""

Values = dict[str, float]


def healthy(step: int, rng: random.Random) -> Values:
    """Values of a policy that learns."""
    progress = min(1.0, step / HEALTHY_STEPS)
    return {
        "loss": 0.1 + 0.02 * rng.gauss(0, 1),
        "kl_ref": 0.02 + 0.02 * progress + 0.003 * abs(rng.gauss(0, 1)),
        "reward": 0.2 + 0.6 * progress + 0.03 * rng.gauss(0, 1),
        "entropy": 1.2 - 0.2 * progress + 0.02 * rng.gauss(0, 1),
        "grad_norm": 0.5 + 0.05 * abs(rng.gauss(0, 1)),
    }


def nan(values: Values, age: int) -> Values:
    """One NaN, and then all of them."""
    return {**values, "loss": float("nan"), **({"grad_norm": float("nan")} if age else {})}


def runaway(values: Values, age: int) -> Values:
    """KL grows by 15 % a step."""
    return {**values, "kl_ref": values["kl_ref"] * min(1e4, 1.15**age)}


def collapse(values: Values, age: int) -> Values:
    """KL, entropy, reward and gradient of a policy that collapses within 20 steps."""
    share = min(1.0, age / 20)
    return {
        **values,
        "kl_ref": values["kl_ref"] * 100**share,
        "entropy": values["entropy"] * (1 - 0.98 * share),
        "reward": values["reward"] * (1 - share),
        "grad_norm": values["grad_norm"] * 20**share,
    }


def mild(values: Values, age: int) -> Values:
    """The reward falls to a third, and returns: an incident that is over."""
    return {**values, "reward": values["reward"] / 3} if age < 60 else values


SERIES: dict[str, Callable[[Values, int], Values]] = {
    "nan": nan, "kl-runaway": runaway, "policy-collapse": collapse, "dip": mild,
}  # fmt: skip
ENDINGS = ("exception", "exit", "killed", "terminated")
KINDS = (*SERIES, *ENDINGS, "healthy")


def train(kind: str, seed: int, fault_file: Path) -> None:
    """Train one run in this process, and write the time of its fault."""
    import sentinel

    rng = random.Random(seed)

    @sentinel.monitor(run=f"{kind}-{seed}")
    def loop() -> None:
        for step in range(1, HEALTHY_STEPS + FAULTY_STEPS):
            values, age = healthy(step, rng), step - HEALTHY_STEPS
            if age >= 0 and kind in SERIES:
                values = SERIES[kind](values, age)
            if age == 0:
                fault_file.write_text(str(time.time()))
                end(kind)
            sentinel.log(values, step=step)
            time.sleep(STEP_SECONDS)

    loop()


def end(kind: str) -> None:
    """End this process as `kind` says, if it is an ending."""
    if kind == "exception":
        raise RuntimeError("bad sample in shard 7")
    if kind == "exit":
        sys.exit(3)
    if kind in {"killed", "terminated"}:
        os.kill(os.getpid(), signal.SIGKILL if kind == "killed" else signal.SIGTERM)
        time.sleep(60)


@dataclass
class Arrivals:
    """What the receiver got of one run, in order, each with the time of its arrival."""

    webhook: list[tuple[float, str, str]] = field(default_factory=list)
    """Status and severity of each request."""
    pushes: list[tuple[float, str]] = field(default_factory=list)
    """Texts of messages of the bot that alert people: those that are new in the channel."""
    edits: int = 0


class Receiver(ThreadingHTTPServer):
    """Answers as a webhook and as Slack."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = receiver.store(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def store(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """Store one request, and return the answer to it."""
        now, arrivals = time.time(), self.arrivals
        if path == "/hook":
            labels = body["commonLabels"]
            assert isinstance(labels, dict)
            arrivals.webhook.append((now, str(body["status"]), str(labels["severity"])))
        elif path.endswith("chat.update"):
            arrivals.edits += 1
        elif "thread_ts" not in body or body.get("reply_broadcast"):
            arrivals.pushes.append((now, str(body.get("text", ""))))
        return {"ok": True, "channel": "C1", "ts": f"{now:.6f}"}


@dataclass(frozen=True)
class Outcome:
    """What one run notified; `seconds` from the fault to the first message, None without one."""

    seconds: float | None
    firing: int
    resolved: int
    severities: int
    pushes: int
    edits: int
    texts: tuple[str, ...]


def observe(kind: str, seed: int, receiver: Receiver) -> Outcome:
    """Run one kind once and collect what arrives until its agent has gone."""
    receiver.arrivals = arrivals = Arrivals()
    url = f"http://127.0.0.1:{receiver.server_port}"
    with tempfile.TemporaryDirectory(prefix="sn-") as name:
        home = Path(name)
        settings = (
            f"linger_seconds = {LINGER_SECONDS}\nport = 0\n"
            f'[sinks.webhook]\nurl = "{url}/hook"\n'
            f'[sinks.slack_bot]\ntoken = "xoxb-test"\nchannel = "C1"\napi_url = "{url}/api/"\n'
        )
        (home / "sentinel.toml").write_text(settings)
        environ = {
            **os.environ,
            "SENTINEL_HOME": name,
            "SENTINEL_RUNTIME_DIR": str(home / "rings"),
            "SENTINEL_CONFIG": str(home / "sentinel.toml"),
        }
        command = [sys.executable, __file__, "--kind", kind, "--seed", str(seed), "--file"]
        subprocess.run(
            [*command, str(home / "fault")], env=environ, check=False, capture_output=True
        )
        agents = [json.loads(each.read_text())["pid"] for each in home.glob("runs/*/agent.json")]
        time.sleep(LINGER_SECONDS + 3.0)
        for pid in agents:
            wait_for_end(pid)
        fault_at = float((home / "fault").read_text())
    firing = [each for each in arrivals.webhook if each[1] == "firing"]
    return Outcome(
        seconds=min((each[0] for each in firing), default=0.0) - fault_at if firing else None,
        firing=len(firing),
        resolved=len(arrivals.webhook) - len(firing),
        severities=len({severity for _, _, severity in firing}),
        pushes=len(arrivals.pushes),
        edits=arrivals.edits,
        texts=tuple(text for _, text in arrivals.pushes),
    )


def table(outcomes: dict[str, list[Outcome]]) -> Iterator[str]:
    """One line for each kind."""
    yield (
        f"{'fault':16} {'runs':>4} {'first message, s':>18} {'webhook firing':>15} {'resolved':>9}"
        f" {'bot pushes':>11} {'per severity':>13} {'edits':>6}"
    )
    for kind, runs in outcomes.items():
        delays = sorted(each.seconds for each in runs if each.seconds is not None)
        late = delays[min(len(delays) - 1, int(0.95 * len(delays)))] if delays else 0.0
        delay = f"{median(delays):.2f} (p95 {late:.2f})" if delays else "none"
        counts = " ".join(
            f"{median(values):>{width}g} (max {max(values)})"
            for width, values in (
                (5, [each.firing for each in runs]),
                (2, [each.resolved for each in runs]),
                (3, [each.pushes for each in runs]),
                (4, [each.severities for each in runs]),
                (4, [each.edits for each in runs]),
            )
        )
        yield f"{kind:16} {len(runs):4} {delay:>18} {counts}"


def main() -> None:
    """Run every kind, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--list", action="store_true", help="print the texts of the messages")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        train(arguments.kind, arguments.seed, arguments.file)
        return
    receiver, outcomes = Receiver(), dict[str, list[Outcome]]()
    for kind in arguments.only.split(","):
        outcomes[kind] = [observe(kind, seed, receiver) for seed in range(arguments.repeats)]
        for text in outcomes[kind][0].texts if arguments.list else ():
            print(f"{kind}: {text}")
    print("\n".join(table(outcomes)))


if __name__ == "__main__":
    main()
