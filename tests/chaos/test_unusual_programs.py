"""Programs that replace standard functions, or run on another kind of loop: the client works."""

from __future__ import annotations

import subprocess

import pytest
from support.decorated_ranks import jobs

from sentinel.model.record import Event

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

STEPS = 30
TIMEOUT_SECONDS = 240.0
"""Timeout of what takes a second on an idle machine."""

PATCHED = """
import builtins, json, os, struct, sys, threading, time, zlib

def refuse(*_, **__):
    raise RuntimeError("replaced by the program")

@monitor
def train():
    saved = time.time, time.monotonic, time.perf_counter, time.sleep, json.dumps, json.loads
    time.time = time.monotonic = time.perf_counter = lambda: 1e9
    time.sleep = json.dumps = json.loads = json.dump = json.load = refuse
    opened, builtins.open = builtins.open, refuse
    builtins.print = struct.pack = zlib.compress = refuse
    for step in range(1, STEPS + 1):
        log(step)
    builtins.open = opened
    time.time, time.monotonic, time.perf_counter, time.sleep, json.dumps, json.loads = saved

train()
"""

ASYNCIO = """
import asyncio

async def task(first):
    for step in range(first, STEPS + 1, 3):
        while turn[0] != step:
            await asyncio.sleep(0)
        log(step)
        turn[0] += 1

turn = [1]

@monitor
async def train():
    await asyncio.gather(*map(task, (1, 2, 3)))

asyncio.run(train())
"""

TRIO = """
import trio

async def task(first):
    for step in range(first, STEPS + 1, 3):
        while turn[0] != step:
            await trio.sleep(0)
        log(step)
        turn[0] += 1

turn = [1]

@monitor
async def train():
    async with trio.open_nursery() as nursery:
        for first in (1, 2, 3):
            nursery.start_soon(task, first)

trio.run(train)
"""

GEVENT = """
import gevent

def task(first):
    for step in range(first, STEPS + 1, 3):
        while turn[0] != step:
            gevent.sleep(0)
        log(step)
        turn[0] += 1

turn = [1]

@monitor
def train():
    gevent.joinall([gevent.spawn(task, first) for first in (1, 2, 3)], raise_error=True)

train()
"""

NOTEBOOK = """
import ast, asyncio, inspect, types

CELLS = '''
from math import sqrt
entered = monitor.__enter__()
---
async def later(step):
    await asyncio.sleep(0)
    log(step)
for step in range(1, STEPS):
    await later(step)
---
1 / 0
---
await later(STEPS)
---
entered.__exit__(None, None, None)
'''.split("---")

async def kernel():
    # As IPython runs cells with `await`: compiled one by one, in one loop and namespace.
    for number, cell in enumerate(CELLS):
        code = compile(cell, f"<cell {number}>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            result = types.FunctionType(code, globals())()
            if inspect.iscoroutine(result):
                await result
        except ZeroDivisionError:
            pass

asyncio.run(kernel())
"""

GEVENT_FIRST = "from gevent import monkey; monkey.patch_all()\n"

HEADER = f"""
import sentinel

STEPS = {STEPS}
monitor = sentinel.monitor(run="program", strict=True, agent=AGENT)

def log(step):
    sentinel.log({{"x": float(step)}}, step=step)
"""

PROGRAMS = {
    "patched": HEADER + PATCHED,
    "asyncio": HEADER + ASYNCIO,
    "trio": HEADER + TRIO,
    "gevent": GEVENT_FIRST + HEADER + GEVENT,
    "gevent-late": HEADER + GEVENT_FIRST + GEVENT,
    "notebook": HEADER + NOTEBOOK,
}
"""Programs by the loop that they use. Each logs STEPS steps, `log(step)` for each."""


def run(arguments):
    return subprocess.run(
        arguments, check=False, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )


@pytest.mark.fault("I10")
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_of_an_unusual_program_is_recorded(name, script, recorded):
    done = run(script(PROGRAMS[name].replace("AGENT", "False")))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (records,) = recorded().values()
    steps = [r for r in records if r.event is Event.STEP]
    assert [(r.step, r.values["x"]) for r in steps] == [(n, float(n)) for n in range(1, STEPS + 1)]
    assert records[-1].attributes == {"outcome": "finished"}


@pytest.mark.full
@pytest.mark.fault("I10")
def test_unusual_programs_start_their_agents(tmp_path):
    with jobs(tmp_path) as start:
        started = {
            name: start(name, program.replace("AGENT", "True"), run=None)
            for name, program in PROGRAMS.items()
        }
        for name, job in started.items():
            assert job.wait() == 0, name
            assert job.output.read_text() == "", name
            assert [record.step for record in job.steps()] == list(range(1, STEPS + 1)), name
            assert job.alerts() == [], name
