"""Bound: watched generators and methods answer to whoever calls them as they did."""

import asyncio

import sentinel


def test_an_async_generator_is_sent_thrown_and_closed_as_ever():
    seen = []

    @sentinel.monitor(run="t", agent=False)
    async def train():
        try:
            seen.append((yield 1))
            try:
                yield 2
            except KeyError:
                seen.append("thrown")
            yield 3
        finally:
            seen.append("closed")

    async def main():
        steps = train()
        told = [await steps.asend(None), await steps.asend("sent"), await steps.athrow(KeyError())]
        await steps.aclose()
        return told

    assert asyncio.run(main()) == [1, 2, 3]
    assert seen == ["sent", "thrown", "closed"]


def test_methods_of_a_class_may_be_watched_whichever_decorator_comes_first():
    watched = sentinel.monitor(run="t", agent=False)

    class Trainer:
        @watched
        @staticmethod
        def plain(x):
            return x

        @watched
        @classmethod
        def made(cls, x):
            return cls, x

    assert (Trainer.plain(1), Trainer().plain(2)) == (1, 2)
    assert (Trainer.made(1), Trainer().made(2)) == ((Trainer, 1), (Trainer, 2))
