"""Leading eigenvalues and eigenvectors of the Hessian, from Hessian-vector products alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import psutil
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from sentinel.insight.measure.evaluation import Evaluator
from sentinel.insight.measure.rank_exchange import RankExchange
from sentinel.insight.measure.surface_error import SurfaceError, UndefinedError
from sentinel.insight.measure.weight_space import Vector

MAX_RESTARTS = 30
_DENSE_SIZE = 40
"""Up to this many weights the whole Hessian is computed."""
_BASIS = 20
"""Vectors of the Lanczos basis, fewer where memory is short."""
_SHARE_OF_MEMORY = 0.25

Which = Literal["LM", "LA", "SA"]
"""Largest magnitude, largest, or smallest eigenvalues."""


def leading_eigenpairs(  # noqa: PLR0913 - keyword arguments
    evaluator: Evaluator,
    count: int = 1,
    *,
    which: Which = "LA",
    tolerance: float = 1e-3,
    seed: int = 0,
    scale: np.ndarray[Any, Any] | None = None,
) -> list[tuple[float, Vector]]:
    """The leading eigenvalues of the Hessian at the centre, with eigenvectors of norm 1.

    Lanczos iterations of ARPACK (`scipy.sparse.linalg.eigsh`) on Hessian-vector products, until the
    relative error is below `tolerance`. With `scale` s it is the matrix diag(s) H diag(s). The sign
    of an eigenvector is that its largest element is positive.

    Raises UndefinedError if they do not converge or the Hessian is not finite, and SurfaceError if
    there are fewer weights or the basis does not fit in memory.
    """
    space = evaluator.space
    size = space.size

    def product(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        flat = array.reshape(-1).astype(np.float64)
        if scale is not None:
            flat = flat * scale
        result = space.to_array(evaluator.hessian_product(space.from_array(flat)))
        if not np.isfinite(result).all():
            raise UndefinedError(
                "The Hessian has values that are not finite: the loss or its gradient is NaN or "
                "infinite at the current weights. Measure at an earlier checkpoint."
            )
        return result if scale is None else result * scale

    if count > size:
        raise SurfaceError(
            f"{count} eigenvalues of {size} weights cannot be found: choose more weights with "
            "`parameters`."
        )
    try:
        values, vectors = _solve(product, size, count, which, tolerance, seed, evaluator.exchange)
    finally:
        evaluator.release()
    found = []
    keys = {"LM": -abs(values), "LA": -values, "SA": values}
    for index in keys[which].argsort()[:count]:
        vector = vectors[:, index]
        sign = -1.0 if vector[np.argmax(np.abs(vector))] < 0 else 1.0
        found.append((float(values[index]), space.from_array(sign * vector)))
    return found


def _solve(  # noqa: PLR0913, PLR0917
    product: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
    size: int,
    count: int,
    which: Which,
    tolerance: float,
    seed: int,
    exchange: RankExchange,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Eigenvalues and eigenvectors as columns."""
    if size <= max(_DENSE_SIZE, count + 1):
        matrix = np.stack([product(row) for row in np.eye(size)])
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return values, vectors
    start = np.random.default_rng(seed).standard_normal(size)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        values, vectors = eigsh(
            operator,
            k=count,
            which=which,
            tol=tolerance,
            v0=start,
            ncv=_basis_size(size, count, exchange),
            maxiter=MAX_RESTARTS,
        )
    except ArpackNoConvergence as error:
        raise UndefinedError(
            f"The leading eigenvalues of the Hessian did not converge in {MAX_RESTARTS} restarts: "
            "use a larger batch or a larger `tolerance`."
        ) from error
    except ArpackError:
        # ARPACK refuses a Hessian of zeros, as that of a loss that is clipped everywhere.
        if product(start).any():
            raise
        return np.zeros(count), np.eye(size, count)
    return values, vectors


def _basis_size(size: int, count: int, exchange: RankExchange) -> int:
    """Vectors of the Lanczos basis that fit in a quarter of the free memory of every rank."""
    own = int(_SHARE_OF_MEMORY * psutil.virtual_memory().available / (8 * size))
    # Another basis takes other products, each a collective of all ranks.
    fits: int = min(exchange.gather(own))
    least = 2 * count + 1
    if fits < least + 3:
        raise SurfaceError(
            f"The eigenvectors of {size:,} weights need {8 * size * (least + 3) / 2**30:.1f} GiB "
            "of host memory, more than a quarter of what is free: choose fewer weights with "
            '`parameters`, such as one layer or "*lora*".'
        )
    return min(size, max(least, min(_BASIS, fits - 3)))
