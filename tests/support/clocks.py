"""A clock that the test advances."""


class FakeClock:
    """Returns `now`, in seconds since the epoch."""

    def __init__(self, now=1.7e9):
        self.now = now

    def __call__(self):
        return self.now
