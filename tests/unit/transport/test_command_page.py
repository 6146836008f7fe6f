"""Command pages: a command is read completely or not, and all ranks execute it or none."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.client.control.command_executor import CommandExecutor
from sentinel.transport.command_page import (
    ACTIONS,
    MAX_LOCAL_RANKS,
    NUMBER_WORD,
    PAGE_SIZE,
    Command,
    CommandPage,
    CommandPageError,
    command_page_path,
    open_or_create,
    remove_orphan_pages,
)
from sentinel.transport.identity import Identity

BOTH = frozenset({"checkpoint", "stop"})
FIRST = Command(1, 5, 15, BOTH, "run/kl_blowup#1", "The policy collapses")


@pytest.fixture
def page(tmp_path):
    with closing(open_or_create(tmp_path / "0.commands")) as page:
        yield page


def test_a_new_page_holds_no_command(page):
    assert page.latest_number == 0
    assert page.read() is None


def test_a_command_is_read_as_it_was_written(page, tmp_path):
    page.write(FIRST)

    with closing(CommandPage(tmp_path / "0.commands")) as other:
        assert other.read() == FIRST
        assert other.latest_number == 1


@given(st.text(), st.text(), st.sets(st.sampled_from(ACTIONS)))
def test_long_texts_are_truncated(tmp_path_factory, case, cause, actions):
    with closing(open_or_create(tmp_path_factory.mktemp("page") / "0.commands")) as page:
        page.write(Command(7, 1, 2, frozenset(actions), case, cause))
        command = page.read()

    assert (command.number, command.actions) == (7, actions)
    assert case.startswith(command.case)
    assert cause.startswith(command.cause)
    assert min(len(case), 120) == len(command.case)


def test_an_incomplete_command_is_ignored(page, tmp_path):
    """As left by a writer that was killed between two bytes, over no or an older command."""
    before = (tmp_path / "0.commands").read_bytes()
    page.write(FIRST)
    for new in (FIRST, Command(2, 50, 60, frozenset({"stop"}), "run/nan_or_inf#1")):
        page.write(new)
        after = (tmp_path / "0.commands").read_bytes()
        changed = [at for at in range(PAGE_SIZE) if before[at] != after[at]]
        for upto in changed[1:]:
            torn = after[:upto] + before[upto:]
            half = tmp_path / "half"
            half.write_bytes(torn)
            with closing(CommandPage(half)) as read:
                assert read.read() in (None, FIRST if new is not FIRST else None, new)
                if (
                    torn[8 * NUMBER_WORD : 8 * NUMBER_WORD + 8]
                    == after[8 * NUMBER_WORD : 8 * NUMBER_WORD + 8]
                ):
                    assert read.read() in (None, new)
        before = after


def test_ranks_that_open_the_page_at_once_share_it(tmp_path):
    pages = [open_or_create(tmp_path / "0.commands") for _ in range(3)]
    for local_rank, each in enumerate(pages):
        assert not pages[0].all_ready(4, 3)
        each.set_ready(local_rank, 4)

    assert pages[0].all_ready(4, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["0.commands"]
    for each in pages:
        each.close()


def test_a_file_that_is_not_a_page_is_refused_by_name(tmp_path):
    (tmp_path / "a").write_bytes(b"short")
    (tmp_path / "b").write_bytes(b"x" * PAGE_SIZE)
    for name in ("a", "b"):
        with pytest.raises(CommandPageError, match=str(tmp_path / name)):
            CommandPage(tmp_path / name)
    (tmp_path / "c").symlink_to(tmp_path / "b")
    with pytest.raises(OSError, match="c"):
        CommandPage(tmp_path / "c")


def test_pages_are_removed_with_the_last_ring(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    ring = folder / "0-0.ring"
    ring.touch()
    open_or_create(command_page_path(ring, 0)).close()
    remove_orphan_pages(folder)
    assert command_page_path(ring, 0).exists()

    ring.unlink()
    remove_orphan_pages(folder)
    assert not folder.exists()


class Rank:
    """A rank with the page, and the steps at which it acted."""

    def __init__(self, path, local_rank, ranks):
        identity = Identity("run", 0, local_rank, local_rank, ranks, ranks)
        self.executor = CommandExecutor()
        self.executor.attach(open_or_create(path), identity)
        self.step_index, self.acted = 0, []

    def step(self):
        """Take one step, and look at its end; at most once in a step, as a recorder looks."""
        self.step_index += 1
        if self.executor.words[NUMBER_WORD] != self.executor.settled_number:
            self.executor.poll(self.step_index, self.step_index)
        if self.executor.pop_actions(self.step_index):
            self.acted.append(self.step_index)


@given(
    ranks=st.integers(1, 4),
    order=st.lists(st.integers(0, 3), min_size=40, max_size=120),
    stalls=st.integers(0, 30),
    margin=st.integers(3, 12),
)
def test_synchronized_ranks_all_act_at_one_step_or_none_does(
    tmp_path_factory, ranks, order, stalls, margin
):
    """At any time of the command and with any rank ahead, since a collective may depend on it.

    The agent looks how far the run is, is then away for `stalls` moves, and writes.
    """
    path = tmp_path_factory.mktemp("page") / "0.commands"
    ranks_on_page = [Rank(path, local_rank, ranks) for local_rank in range(ranks)]
    newest_index = None
    with closing(CommandPage(path)) as agent:
        for at, chosen in enumerate(order):
            rank = ranks_on_page[chosen % ranks]
            # A rank ends a step only after all others ended the step before.
            if rank.step_index <= min(each.step_index for each in ranks_on_page):
                rank.step()
            if at == 10:
                newest_index = max(1, *(each.step_index for each in ranks_on_page))
            if at == 10 + stalls and newest_index is not None:
                agent.write(Command(1, newest_index, newest_index + margin, BOTH))
        while (last := min(ranks_on_page, key=lambda each: each.step_index)).step_index < 200:
            last.step()

    outcomes = {tuple(each.acted) for each in ranks_on_page}
    assert len(outcomes) == 1
    assert outcomes <= {(), (newest_index + margin,)}
    if not stalls and newest_index is not None:
        assert outcomes == {(newest_index + margin,)}
    for each in ranks_on_page:
        each.executor.close()


@given(
    order=st.lists(st.integers(0, 2), min_size=40, max_size=120),
    written=st.integers(0, 40),
    margin=st.integers(3, 12),
)
def test_loosely_synchronized_ranks_act_alike(tmp_path_factory, order, written, margin):
    """One rank may be many steps behind, as if gradients are synchronized only at intervals."""
    path = tmp_path_factory.mktemp("page") / "0.commands"
    ranks_on_page = [Rank(path, local_rank, 3) for local_rank in range(3)]
    with closing(CommandPage(path)) as agent:
        for at, chosen in enumerate([*order, *[0, 1, 2] * 70]):
            if at == written:
                newest_index = max(1, *(each.step_index for each in ranks_on_page))
                agent.write(Command(1, newest_index, newest_index + margin, BOTH))
            ranks_on_page[chosen].step()
        while (last := min(ranks_on_page, key=lambda each: each.step_index)).step_index < 200:
            last.step()

    assert len({tuple(each.acted) for each in ranks_on_page}) == 1
    for each in ranks_on_page:
        each.executor.close()


def test_no_rank_acts_if_one_takes_no_steps(tmp_path):
    """If only one rank logs, the others would be missing in a collective."""
    path = tmp_path / "0.commands"
    talking, silent = Rank(path, 0, 2), Rank(path, 1, 2)
    with closing(CommandPage(path)) as agent:
        for _ in range(5):
            talking.step()
        agent.write(Command(1, 5, 9, BOTH))
        for _ in range(20):
            talking.step()
            silent.executor.poll(0, 0)

    assert (talking.acted, silent.acted) == ([], [])
    talking.executor.close()
    silent.executor.close()


def test_each_of_many_ranks_has_a_ready_token(page):
    for local_rank in range(MAX_LOCAL_RANKS):
        page.set_ready(local_rank, 3)

    assert page.all_ready(3, MAX_LOCAL_RANKS)
    assert page.read() is None
