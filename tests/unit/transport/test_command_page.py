"""A page of requests: all of a request or none of it, and all of the ranks or none of them."""

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


def test_nothing_is_asked_before_the_first(page):
    assert page.latest_number == 0
    assert page.read() is None


def test_a_request_is_read_as_it_was_written_by_whoever_maps_it(page, tmp_path):
    page.write(FIRST)

    with closing(CommandPage(tmp_path / "0.commands")) as other:
        assert other.read() == FIRST
        assert other.latest_number == 1


@given(st.text(), st.text(), st.sets(st.sampled_from(ACTIONS)))
def test_any_text_fits_as_far_as_it_fits(tmp_path_factory, case, cause, deeds):
    with closing(open_or_create(tmp_path_factory.mktemp("page") / "0.commands")) as page:
        page.write(Command(7, 1, 2, frozenset(deeds), case, cause))
        found = page.read()

    assert (found.number, found.actions) == (7, deeds)
    assert case.startswith(found.case)
    assert cause.startswith(found.cause)
    assert min(len(case), 120) == len(found.case)


def test_a_request_of_which_any_part_is_missing_is_none(page, tmp_path):
    """As a writer leaves it that was killed between two bytes, over nothing or an older one."""
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


def test_several_ranks_that_come_at_once_share_one_page(tmp_path):
    pages = [open_or_create(tmp_path / "0.commands") for _ in range(3)]
    for place, each in enumerate(pages):
        assert not pages[0].all_ready(4, 3)
        each.set_ready(place, 4)

    assert pages[0].all_ready(4, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["0.commands"]
    for each in pages:
        each.close()


def test_what_is_no_page_is_refused_by_its_name(tmp_path):
    (tmp_path / "a").write_bytes(b"short")
    (tmp_path / "b").write_bytes(b"x" * PAGE_SIZE)
    for name in ("a", "b"):
        with pytest.raises(CommandPageError, match=str(tmp_path / name)):
            CommandPage(tmp_path / name)
    (tmp_path / "c").symlink_to(tmp_path / "b")
    with pytest.raises(OSError, match="c"):
        CommandPage(tmp_path / "c")


def test_pages_go_with_the_last_ring_beside_them(tmp_path):
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
    """A rank on a page, and the steps at which it acted."""

    def __init__(self, path, place, ranks):
        identity = Identity("run", 0, place, place, ranks, ranks)
        self.errands = CommandExecutor()
        self.errands.attach(open_or_create(path), identity)
        self.beat, self.acted = 0, []

    def step(self):
        """Take one step, and look at its end; at most once in a step, as a recorder looks."""
        self.beat += 1
        if self.errands.words[NUMBER_WORD] != self.errands.settled_number:
            self.errands.poll(self.beat, self.beat)
        if self.errands.pop_actions(self.beat):
            self.acted.append(self.beat)


@given(
    ranks=st.integers(1, 4),
    order=st.lists(st.integers(0, 3), min_size=40, max_size=120),
    stalls=st.integers(0, 30),
    margin=st.integers(3, 12),
)
def test_ranks_that_wait_for_each_other_act_all_at_one_step_or_none_does(
    tmp_path_factory, ranks, order, stalls, margin
):
    """However late the request comes, and whoever is ahead: a collective may hang on it.

    The agent looks how far the run is, is then away for `stalls` moves, and writes.
    """
    path = tmp_path_factory.mktemp("page") / "0.commands"
    crew = [Rank(path, place, ranks) for place in range(ranks)]
    seen = None
    with closing(CommandPage(path)) as agent:
        for at, chosen in enumerate(order):
            rank = crew[chosen % ranks]
            # Nobody ends a step that another has not begun, by ending the one before.
            if rank.beat <= min(each.beat for each in crew):
                rank.step()
            if at == 10:
                seen = max(1, *(each.beat for each in crew))
            if at == 10 + stalls and seen is not None:
                agent.write(Command(1, seen, seen + margin, BOTH))
        while (last := min(crew, key=lambda each: each.beat)).beat < 200:
            last.step()

    told = {tuple(each.acted) for each in crew}
    assert len(told) == 1
    assert told <= {(), (seen + margin,)}
    if not stalls and seen is not None:
        assert told == {(seen + margin,)}
    for each in crew:
        each.errands.close()


@given(
    order=st.lists(st.integers(0, 2), min_size=40, max_size=120),
    written=st.integers(0, 40),
    margin=st.integers(3, 12),
)
def test_ranks_that_wait_for_each_other_only_now_and_then_act_alike(
    tmp_path_factory, order, written, margin
):
    """One may be many steps behind, as where gradients are brought together every so often."""
    path = tmp_path_factory.mktemp("page") / "0.commands"
    crew = [Rank(path, place, 3) for place in range(3)]
    with closing(CommandPage(path)) as agent:
        for at, chosen in enumerate([*order, *[0, 1, 2] * 70]):
            if at == written:
                seen = max(1, *(each.beat for each in crew))
                agent.write(Command(1, seen, seen + margin, BOTH))
            crew[chosen].step()
        while (last := min(crew, key=lambda each: each.beat)).beat < 200:
            last.step()

    assert len({tuple(each.acted) for each in crew}) == 1
    for each in crew:
        each.errands.close()


def test_a_rank_that_takes_no_steps_is_never_ready_so_nobody_acts(tmp_path):
    """Where one rank alone logs, the others would be missing in a collective."""
    path = tmp_path / "0.commands"
    talking, silent = Rank(path, 0, 2), Rank(path, 1, 2)
    with closing(CommandPage(path)) as agent:
        for _ in range(5):
            talking.step()
        agent.write(Command(1, 5, 9, BOTH))
        for _ in range(20):
            talking.step()
            silent.errands.poll(0, 0)

    assert (talking.acted, silent.acted) == ([], [])
    talking.errands.close()
    silent.errands.close()


def test_there_is_a_word_for_each_of_many_ranks(page):
    for place in range(MAX_LOCAL_RANKS):
        page.set_ready(place, 3)

    assert page.all_ready(3, MAX_LOCAL_RANKS)
    assert page.read() is None
