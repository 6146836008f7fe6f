"""The error of measurements on a model: what happened, and what to do."""


class SurfaceError(RuntimeError):
    """A measurement that could not be made. The model is as it was."""
