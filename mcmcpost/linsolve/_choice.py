"""Which solver, as an object."""

import equinox as eqx


class Cholesky(eqx.Module):
    """Factorise the dense matrix; raise the nugget tenfold where it is not positive definite."""


class ConjugateGradients(eqx.Module):
    """Preconditioned conjugate gradients on tiles; the matrix is never formed.

    rtol : residual relative to each right-hand side.
    max_steps : budget in products with the matrix.
    rank : of the pivoted Cholesky preconditioner.
    """

    rtol: float = 1e-3
    max_steps: int = 100
    rank: int = 300
