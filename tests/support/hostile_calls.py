"""A training that calls sentinel with hostile arguments from threads and a signal handler.

Meanwhile its agent is stopped and killed at random times.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.recorders import Hostile, HostileFloat

import sentinel
from sentinel.client import guard as guard_module
from sentinel.client.session import CurrentSession

RUN = "hostile"
HANDLER_INTERVAL_SECONDS = 0.002


class HostileDict(dict[Any, Any]):
    """A mapping of which every access raises."""

    __getitem__ = __iter__ = __len__ = keys = values = items = copy = get = Hostile._raise  # type: ignore[assignment]


NUMBERS = (
    0, 1, -1, 2.5, True, 1e308, -0.0, float("nan"), float("inf"), -float("inf"), 10**400, 1 << 64,
    None, "3", "\ud800", "x" * 5000, b"x", 1j, (), [1.0], {"a": 1.0}, object(), Hostile(),
    HostileFloat(1.0), Ellipsis, int, 2.0 .hex,
)  # fmt: skip
NAMES = (
    "loss", "kl", "global_step", "step_time", "epoch", "", "a b", "\x00", "\ud800", "<!channel>",
    "x" * 3000, "日本", 7, None, 2.5, (1, 2), b"loss", frozenset(),
)  # fmt: skip
STEPS = (None, 0, 1, 5, -3, 2**62, 2**70, 2.5, float("nan"), "7", True, Hostile(), [], b"1")
EVENTS = ("save", "eval", "resume", "unknown", "", None, 3, Hostile(), [])
MAPPINGS = (None, [], 3, "loss", HostileDict(loss=1.0), Hostile(), {1.0}, os.environ)
TEXTS = (["a", "b"], [], None, ["x" * 9000], [Hostile()], Hostile(), "text", [None, 3], {"a": 1})


def call_at_random(random_: random.Random) -> None:
    """One call of the public API with random arguments, most of them invalid."""
    choice = random_.choice
    kind = random_.random()
    if kind < 0.1:
        sentinel.log(choice(MAPPINGS), choice(STEPS), choice(NUMBERS))
    elif kind < 0.6:
        values = {choice(NAMES): choice(NUMBERS) for _ in range(random_.randrange(5))}
        sentinel.log(values, choice(STEPS), choice(NUMBERS) if kind < 0.2 else None)
    elif kind < 0.85:
        sentinel.log({"loss": random_.random(), "kl": 0.1}, step=random_.randrange(10_000))
    elif kind < 0.9:
        sentinel.mark(choice(EVENTS), choice(STEPS), loss=choice(NUMBERS), text=choice(NUMBERS))
    elif kind < 0.93:
        sentinel.log_samples(
            choice(TEXTS), choice(TEXTS), choice([*NUMBERS, {"r": [1.0]}]), choice(STEPS), [True]
        )
    elif kind < 0.96:
        with sentinel.phase(choice(NAMES)):
            pass
    else:
        sentinel.requested()


def train(calls: int, threads: int) -> None:
    """Make the calls, and print how many raised, with the first of them, as JSON."""
    import threading

    raised: list[str] = []
    swallowed: list[str] = []
    handled = 0
    guard_module.on_swallowed_error = lambda error: swallowed.extend(
        traceback.format_exception(error)
    )

    def work(number: int) -> None:
        random_ = random.Random(number)
        for _ in range(calls // threads):
            try:
                call_at_random(random_)
            except Exception as error:
                raised.append(repr(error)[:200])

    def handler(*_: object) -> None:
        nonlocal handled
        handled += 1
        sentinel.log({"handler": 1.0}, step=handled)

    with sentinel.monitor(samples=2):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, HANDLER_INTERVAL_SECONDS, HANDLER_INTERVAL_SECONDS)
        running = [threading.Thread(target=work, args=(n,)) for n in range(1, threads)]
        for thread in running:
            thread.start()
        work(0)
        for thread in running:
            thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        session = CurrentSession.session
        assert session is not None
        guard = session.guard
    result = {
        "calls": calls // threads * threads,
        "handled": handled,
        "raised": len(raised),
        "internal_errors": guard.swallowed_errors,
        "first": [*raised[:3], *swallowed[:20]],
    }
    print(json.dumps(result))


def run_hostile_calls(folder: Path, calls: int, threads: int = 4) -> dict[str, Any]:
    """Run such a training in that folder; what it printed, its exit code, and the attacks."""
    environ = {
        **os.environ,
        "SENTINEL_HOME": str(folder / "home"),
        "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
        "SENTINEL_LINGER_SECONDS": "0",
        "SENTINEL_RUN_ID": RUN,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ["PYTHONPATH"]]),
    }
    code = f"from support.hostile_calls import train; train({calls}, {threads})"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    registration = folder / "home" / "runs" / RUN / "agent.json"
    random_, attacks = random.Random(calls), 0
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as trainer:
        while trainer.poll() is None:
            time.sleep(random_.uniform(0.05, 0.5))
            with suppress(OSError, ValueError):
                pid = json.loads(registration.read_text())["pid"]
                if random_.random() < 0.5:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(random_.uniform(0.05, 0.5))
                    os.kill(pid, signal.SIGCONT)
                else:
                    os.kill(pid, signal.SIGKILL)
                attacks += 1
        assert trainer.stdout is not None
        output = trainer.stdout.read()
    result = json.loads(output) if output else {}
    return {**result, "exit_code": trainer.returncode, "attacks_on_agent": attacks}
