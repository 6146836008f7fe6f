"""Calls of the tools for agents, through the client of the official SDK."""

from __future__ import annotations

import asyncio
import json
import re

from mcp.client import Client

TIMEOUT_SECONDS = 240.0
FENCED = re.compile(r"<untrusted>(.*?)</untrusted>", re.DOTALL)


class Answer:
    """The text of an answer, its data with the fences taken off, and whether it is an error."""

    def __init__(self, result):
        assert len(result.content) == 1
        assert result.structured_content is None
        self.text, self.is_error = result.content[0].text, bool(result.is_error)

    @property
    def data(self):
        assert not self.is_error, self.text
        return unfenced(json.loads(self.text))

    @property
    def own(self):
        """What stands outside the fences."""
        return FENCED.sub("", self.text)


def unfenced(value):
    """The data without the marks of the fences."""
    if isinstance(value, str):
        return FENCED.sub(r"\1", value)
    if isinstance(value, dict):
        return {key: unfenced(each) for key, each in value.items()}
    return [unfenced(each) for each in value] if isinstance(value, list) else value


def call_tools(server, *calls, **options):
    """The answers to calls, each the name of a tool and its arguments, in one connection.

    `server` is a server of this process, a transport, or an address.
    """

    async def run():
        async with Client(server, read_timeout_seconds=TIMEOUT_SECONDS, **options) as client:
            return [Answer(await client.call_tool(name, given)) for name, given in calls]

    return asyncio.run(run())


def list_tools(server, **options):
    """The tools by name."""

    async def run():
        async with Client(server, read_timeout_seconds=TIMEOUT_SECONDS, **options) as client:
            return {each.name: each for each in (await client.list_tools()).tools}

    return asyncio.run(run())
