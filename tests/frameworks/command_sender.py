"""Sends commands to every rank of the current run, as an agent would."""

from contextlib import closing

from sentinel.client.session import current_session
from sentinel.transport.command_page import Command, CommandPage, command_page_path


def send_command(*actions, ready_from_index, due_step_index, number=1):
    """Send a command with these actions."""
    session = current_session()
    with closing(
        CommandPage(command_page_path(session.ring.path, session.identity.attempt))
    ) as page:
        page.write(
            Command(
                number,
                ready_from_index,
                due_step_index,
                frozenset(actions),
                "run/kl_blowup#1",
                "The rate",
            )
        )
