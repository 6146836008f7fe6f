"""Stands in for an agent: asks every rank of the run under way for something, at a step to come."""

from contextlib import closing

from sentinel.client.session import current_session
from sentinel.transport.command_page import Command, CommandPage, command_page_path


def ask(*deeds, since, beat, number=1):
    """Ask for these deeds, as an agent of this node would."""
    session = current_session()
    with closing(
        CommandPage(command_page_path(session.ring.path, session.identity.attempt))
    ) as page:
        page.write(Command(number, since, beat, frozenset(deeds), "run/kl_blowup#1", "The rate"))
