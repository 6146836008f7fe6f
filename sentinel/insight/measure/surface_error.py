"""The errors of measurements on a model: what happened, and what to do."""


class SurfaceError(RuntimeError):
    """A measurement that could not be made. The model is as it was."""


class UndefinedError(SurfaceError):
    """A gradient or an eigenvalue that the loss does not have at these weights.

    It is raised on every rank alike, so that the ranks may go on without it.
    """
