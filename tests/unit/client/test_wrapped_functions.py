"""Decorated generators and methods behave as they did for their callers."""

import asyncio

import pytest

import sentinel


@pytest.mark.fault("I7")
def test_a_decorated_async_generator_forwards_send_throw_and_close():
    events = []

    @sentinel.monitor(run="t", agent=False)
    async def train():
        try:
            events.append((yield 1))
            try:
                yield 2
            except KeyError:
                events.append("thrown")
            yield 3
        finally:
            events.append("closed")

    async def main():
        steps = train()
        yielded = [
            await steps.asend(None),
            await steps.asend("sent"),
            await steps.athrow(KeyError()),
        ]
        await steps.aclose()
        return yielded

    assert asyncio.run(main()) == [1, 2, 3]
    assert events == ["sent", "thrown", "closed"]


@pytest.mark.fault("I7")
def test_static_and_class_methods_can_be_decorated():
    monitored = sentinel.monitor(run="t", agent=False)

    class Trainer:
        @monitored
        @staticmethod
        def plain(x):
            return x

        @monitored
        @classmethod
        def made(cls, x):
            return cls, x

    assert (Trainer.plain(1), Trainer().plain(2)) == (1, 2)
    assert (Trainer.made(1), Trainer().made(2)) == ((Trainer, 1), (Trainer, 2))
