"""A damaged database ends no watch: of each page in turn, and of many at once.

Each case is a run of its own: a script with the decorator, its agent, and a receiver. A NaN
is notified and resolved before the damage; the NaN after it must be notified too, once, and the
first one not again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.damaged_runs import PAGE_SIZE, DamagedRun
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.store.database import connect
from sentinel.store.recovery import set_aside_files

PARALLEL = 6
PAGES = 58
"""Pages of the database of such a run; 46 of them are the roots of tables and indices."""
STRIDES = {"dead": 2, "running": 6, "log": 12}
"""Every which page is damaged, by what the agent does meanwhile."""
Damage = Callable[[DamagedRun], None]


def nan_alerts(receiver: Receiver) -> list[str]:
    """Name and status of the received notifications of NaN, in order."""
    return [
        f"{body['groupKey'].partition('/')[2]} {body['status']}"
        for body in (request.json for request in receiver.accepted)
        if body["commonLabels"]["alertname"] == "nan_or_inf"
    ]


def all_alerts(receiver: Receiver) -> list[str]:
    """Name, status and id of every notification received, in order."""
    return [
        f"{request.json['groupKey']} {request.json['status']} {request.headers['webhook-id'][:6]}"
        for request in receiver.accepted
    ]


def watch_through(folder: Path, damage: Damage) -> str:
    """What is wrong with the monitoring of a run that is damaged so; empty if nothing is."""
    # The kill may come before the last outcome left the write-ahead log.
    is_log = folder.name.startswith("log")
    with Receiver() as receiver, DamagedRun(folder, receiver.url) as run:
        try:
            run.start_agent()
            run.start_trainer()
            until(lambda: run.stored_steps() > 20, 1120.0, "the first steps")
            run.begin_nan()
            until(lambda: "nan_or_inf#1 firing" in nan_alerts(receiver), 1120.0, "the first NaN")
            run.end_nan()
            until(lambda: "nan_or_inf#1 resolved" in nan_alerts(receiver), 1120.0, "its end")
            # An update of the first NaN may have been sent too.
            until(
                lambda: delivered(run) >= len(receiver.accepted), 240.0, "the outcomes are stored"
            )
            damage(run)
            before = run.step()
            until(lambda: run.step() > before + 40, 1120.0, "monitoring after the damage")
            run.begin_nan()
            until(lambda: "nan_or_inf#2 firing" in nan_alerts(receiver), 1120.0, "the NaN after it")
            run.end()
            assert_once(receiver, repeats=is_log)
            assert_no_step_twice(run)
        except AssertionError as error:
            return f"{error}; {all_alerts(receiver)}\n{run.agent_log()[-6000:]}"
    return ""


def delivered(run: DamagedRun) -> int:
    with suppress(Exception):
        return run.query("select count(*) from outbox where state = 'delivered'")[0][0]
    return 0


def assert_once(receiver: Receiver, *, repeats: int) -> None:
    """Each notification is sent once, or at most `repeats` more times in all."""
    counts = Counter(request.headers["webhook-id"] for request in receiver.accepted)
    assert counts.total() - len(counts) <= repeats, "a notification was sent twice"
    firing = {each for each in nan_alerts(receiver) if each.endswith("firing")}
    assert len(firing) == 2, f"alerts: {firing}"


def assert_no_step_twice(run: DamagedRun) -> None:
    try:
        ((rows, steps),) = run.query(
            "select count(*), count(distinct step) from step where event = 'step'"
        )
    except sqlite3.DatabaseError:
        # Damage of a page that nothing reads is found by the next check, half a minute later.
        assert not set_aside_files(run.database), "the new database is damaged too"
        return
    assert rows == steps, f"{rows} rows of {steps} steps"
    # More than 20 before the damage, and more than 40 after it.
    assert steps > 60, f"{steps} steps are stored"


def overwrite_while_dead(pages: Callable[[DamagedRun], Iterable[int]]) -> Damage:
    """Kill the agent, overwrite these pages, and start the next one."""

    def damage(run: DamagedRun) -> None:
        run.kill_agent()
        run.checkpoint()
        run.overwrite(pages(run))
        run.start_agent()

    return damage


def overwrite_while_running(pages: Callable[[DamagedRun], Iterable[int]]) -> Damage:
    return lambda run: run.overwrite(pages(run))


def overwrite_log(page: int) -> Damage:
    """Kill the agent, overwrite a page of the write-ahead log, and start the next one."""

    def damage(run: DamagedRun) -> None:
        run.kill_agent()
        log = run.database.with_name("sentinel.db-wal")
        # The log is empty after a delivery, until the next commit.
        if pages := log.stat().st_size // PAGE_SIZE:
            run.overwrite([min(page, pages)], log)
        run.start_agent()

    return damage


def problems(folder: Path, damages: dict[str, Damage]) -> list[str]:
    """The cases in which monitoring did not go on, each with what was wrong."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        found = pool.map(
            lambda item: (item[0], watch_through(folder / item[0], item[1])), damages.items()
        )
        return [f"{name}: {problem}" for name, problem in found if problem]


def root_of(name: str) -> Callable[[DamagedRun], list[int]]:
    return lambda run: [run.root_page(name)]


@pytest.mark.chaos
@pytest.mark.fault("S6")
@pytest.mark.timeout(600)
def test_monitoring_goes_on_after_damage_to_a_few_pages(tmp_path):
    damages = {
        "header": overwrite_while_dead(lambda _: [1]),
        "outbox": overwrite_while_dead(root_of("outbox")),
        "ring": overwrite_while_dead(root_of("ring")),
        "third": overwrite_while_dead(lambda run: range(2, run.page_count() + 1, 3)),
        "running": overwrite_while_running(root_of("outbox")),
    }
    assert problems(tmp_path, damages) == []


def lose(*, is_deleted: bool) -> Damage:
    """Kill the agent, empty or delete the database and its copy, and start the next agent."""

    def damage(run: DamagedRun) -> None:
        run.kill_agent()
        for directory in (run.directory, run.home):
            for path in directory.glob("sentinel.db*"):
                path.unlink()
            if not is_deleted:
                (directory / "sentinel.db").touch()
        run.start_agent()
        until(lambda: 'reason="replaced",run="live"} 1.0' in metrics(run), 240.0, "it is reported")

    return damage


def metrics(run: DamagedRun) -> str:
    """Those of the agent; "" while none answers."""
    with suppress(OSError):
        return run.metrics()
    return ""


@pytest.mark.chaos
@pytest.mark.fault("S10")
@pytest.mark.timeout(300)
def test_monitoring_goes_on_after_the_database_is_lost(tmp_path):
    """Its records are read again from the rings, and what was sent is not sent again."""
    damages = {"empty": lose(is_deleted=False), "missing": lose(is_deleted=True)}
    assert problems(tmp_path, damages) == []


@pytest.mark.chaos
@pytest.mark.fault("S6")
@pytest.mark.timeout(300)
def test_a_replaced_database_is_stated_everywhere_and_notified_once(tmp_path):
    with Receiver() as receiver, DamagedRun(tmp_path / "run", receiver.url) as run:
        run.start_agent()
        run.start_trainer()
        until(lambda: run.stored_steps() > 20, 240.0, "the first steps")
        overwrite_while_dead(root_of("step"))(run)
        until(lambda: "live/storage#1" in str(all_alerts(receiver)), 240.0, "the warning")
        storage = run.state()["storage"]
        (damaged,) = run.directory.glob("sentinel.db.corrupt-*")
        assert (storage["mode"], storage["set_aside"]) == ("replaced", damaged.name)
        assert 'sentinel_storage_degraded{reason="replaced",run="live"} 1.0' in run.metrics()
        assert storage["text"] in run.status()
        steps = run.step()
        # A kill before the outcome is stored repeats the delivery.
        until(lambda: delivered(run) >= 1, 240.0, "the outcome is stored")
        run.kill_agent()
        run.start_agent()
        until(lambda: run.step() > steps, 240.0, "the next agent")
        assert run.state()["storage"]["text"] == storage["text"]
        run.end()
        firing = [each for each in all_alerts(receiver) if "storage#1 firing" in each]
        assert len(firing) == 1


@pytest.mark.chaos
@pytest.mark.full
@pytest.mark.fault("S6")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("state", STRIDES)
def test_monitoring_goes_on_after_damage_to_any_page(tmp_path, state):
    """With `DAMAGED_PAGES_STRIDE=1`, of every page in each state."""
    kinds = {"dead": overwrite_while_dead, "running": overwrite_while_running}
    stride = int(os.environ.get("DAMAGED_PAGES_STRIDE", STRIDES[state]))

    def damage_of(page: int) -> Damage:
        if state == "log":
            return overwrite_log(page)
        return kinds[state](lambda run: [min(page, run.page_count())])

    damages = {f"{state}-{page}": damage_of(page) for page in range(1, PAGES + 1, stride)}
    assert problems(tmp_path, damages) == []


@pytest.mark.chaos
@pytest.mark.fault("S8")
@pytest.mark.timeout(300)
def test_a_run_goes_on_with_the_home_directory_alone(tmp_path):
    """The end of a machine or container costs shared memory: the copy has all but the newest."""
    with Receiver() as receiver, DamagedRun(tmp_path / "run", receiver.url) as run:
        run.start_agent()
        run.start_trainer()
        run.begin_nan()
        until(lambda: "nan_or_inf#1 firing" in nan_alerts(receiver), 240.0, "the NaN")
        database = run.home / "sentinel.db"
        sent = "select count(*) from outbox where state = 'delivered'"
        until(lambda: copied(database, sent), 240.0, "a copy of the outcome")
        newest = "select coalesce(max(step), 0) from step"
        for number in (10, 30, 50):
            until(lambda number=number: copied(database, newest) > number, 240.0, "a copy")
            run.kill_agent()
            shutil.rmtree(run.directory)
            with closing(connect(database, "delete")) as connection:
                assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
                query = "select step from step where event = 'step' order by id"
                steps = [step for (step,) in connection.execute(query)]
            assert steps == list(range(1, len(steps) + 1))
            run.start_agent()
            until(lambda: run.stored_steps() > len(steps), 240.0, "the next agent continues")  # noqa: B023
        run.end()
        assert_no_step_twice(run)
        ids = [request.headers["webhook-id"] for request in receiver.accepted]
        assert len({*ids}) == len(ids), "a notification was sent twice"


def copied(database: Path, query: str) -> int:
    """The number that a query finds in the copy of the database; 0 while there is none."""
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection,
    ):
        return int(connection.execute(query).fetchone()[0])
    return 0
