"""Exceptions that are raised at any bytecode of a call of sentinel, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sentinel.model.record import Event, Record
from sentinel.transport import paths
from sentinel.transport.record_codec import RecordDecoder, UnknownSchemaError
from sentinel.transport.ring import RingCursor, RingReader

SCRIPT = """
import ctypes, json, random, signal, sys, threading, time
import sentinel

kind, raises = sys.argv[1], int(sys.argv[2])
random.seed(raises)
requests = []

class Restart(BaseException):
    pass

expected = TimeoutError if kind == "TimeoutError in a signal handler" else Restart

def raise_from_thread(thread):
    while True:
        while not requests:
            time.sleep(0)
        requests.clear()
        time.sleep(random.random() * 2e-4)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(Restart)
        )

def handler(number, frame):
    raise expected()

def request():
    if kind == "PyThreadState_SetAsyncExc":
        requests.append(1)
    else:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 4e-4))

sys.setswitchinterval(1e-5)
signal.signal(signal.SIGALRM, handler)
threading.Thread(target=raise_from_thread, args=[threading.get_ident()], daemon=True).start()

@sentinel.monitor(run="raised", agent=False)
def train():
    # Imported before: importlib swallows a TimeoutError.
    sentinel.log, sentinel.mark, sentinel.phase
    step, interrupted, inside, swallowed = 0, [], 0, 0
    while len(interrupted) < raises and swallowed < 10:
        given_up_at = time.monotonic() + 5.0
        try:
            request()
            while time.monotonic() < given_up_at:
                step += 1
                sentinel.log({"loss": 1.0 / step, "reward": 1}, step=step)
                if step % 7 == 0:
                    sentinel.mark("eval", step=step, loss=2.0)
                if step % 11 == 0:
                    with sentinel.phase("eval"):
                        pass
                if step % 5 == 0:
                    sentinel.log({"kl": step}, step=step)
            swallowed += 1
        except expected as error:
            trace, frames = error.__traceback__, []
            while trace is not None:
                frames.append(trace.tb_frame.f_code.co_filename)
                trace = trace.tb_next
            inside += any("/sentinel/" in name for name in frames)
            interrupted.append(step)
    first_after = step + 1
    for step in range(first_after, first_after + 1000):
        sentinel.log({"loss": 1.0 / step, "reward": 1}, step=step)
    print(json.dumps([interrupted, inside, swallowed, step]))

train()
"""


def raise_anywhere(script: Callable[[str], list[str]], kind: str, raises: int) -> None:
    """Run the script and check its ring."""
    line = [*script(SCRIPT), kind, str(raises)]
    done = subprocess.run(line, timeout=600, check=True, capture_output=True, text=True)
    interrupted, inside, swallowed, last = json.loads(done.stdout)
    (path,) = paths.list_rings(next(Path(os.environ["SENTINEL_RUNTIME_DIR"]).iterdir()).name)
    reader = RingReader(path)
    header, batch = reader.read_header(), reader.read(RingCursor())
    reader.close()
    records = list(decoded(batch.payloads))
    steps = {record.step for record in records if record.event is Event.STEP}

    assert (len(interrupted), swallowed) == (raises, 0)
    assert inside > raises / 3
    assert (header.errors, header.outcome, batch.corrupt_frames) == (0, "finished", 0)
    assert sum(header.drop_counts) == 0
    assert set(range(min(steps), last + 1)) - steps <= set(interrupted)
    assert records[-1].event is Event.STOP


def decoded(payloads: list[bytes]) -> Iterator[Record]:
    """Records whose names are known: the ring may have been overwritten."""
    decoder = RecordDecoder("raised", 0, 0)
    for payload in payloads:
        with suppress(UnknownSchemaError):
            if record := decoder.decode(payload):
                yield record


SIGNAL, TIMEOUT = "a signal handler", "TimeoutError in a signal handler"
THREAD = "PyThreadState_SetAsyncExc"


@pytest.mark.fault("P8")
@pytest.mark.parametrize("kind", [THREAD, TIMEOUT])
def test_an_exception_inside_a_call_propagates_and_recording_goes_on(script, kind):
    raise_anywhere(script, kind, 200)


@pytest.mark.full
@pytest.mark.fault("P8")
@pytest.mark.parametrize(("kind", "raises"), [(THREAD, 4000), (SIGNAL, 4000), (TIMEOUT, 2000)])
def test_ten_thousand_exceptions_inside_calls_propagate(script, kind, raises):
    raise_anywhere(script, kind, raises)
