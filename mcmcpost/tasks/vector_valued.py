"""Vector-valued kernel control variates: related integrands, of one target or of several, fitted
together."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mcmcpost.control import (
    HIGHEST_DEGREE,
    AbstractControlVariate,
    ControlFunctional,
    FoldFit,
    GridREML,
    Options,
    Problem,
    Refits,
    Sample,
    SemiExact,
    Subsets,
)
from mcmcpost.control.features.families import exponents_of_degree, polynomial_basis
from mcmcpost.control.kernels.choice import (
    DEFAULT_NUGGET,
    MIN_ITERATIVE_NUGGET,
    kernel_parameters,
    tune,
)
from mcmcpost.control.kernels.functional import DENSE_LIMIT
from mcmcpost.control.kernels.systems import (
    KernelData,
    KernelFit,
    crossfit_dense,
    crossfit_iterative,
    dense_system,
    kernel_data,
)
from mcmcpost.control.linear import DRAWS_PER_FEATURE
from mcmcpost.control.method import (
    JointFit,
    concatenate_fits,
    merge_fits,
    no_control,
    refuse_weighted,
)
from mcmcpost.control.problem import JointProblem, join
from mcmcpost.control.standard_errors import judged_variance
from mcmcpost.control.zero_variance import MIN_GIVEN, MIN_TRAIN
from mcmcpost.core.arguments import check_count, check_flags, check_kind, check_number
from mcmcpost.core.errors import InputError, Status
from mcmcpost.solve import Cholesky, ConjugateGradients, PositiveMatrix, fit_rows, solve_lower
from mcmcpost.stein import (
    AbstractKernel,
    Coregionalisation,
    SecondOrderSteinTile,
    SteinTile,
    check_covariance,
    matrix_stein_tile,
)
from mcmcpost.stein.products import Tile
from mcmcpost.tasks.tuning import ConvexTaskCovariance, TaskModel, TaskREML, floored, tune_tasks


def crossfit_kronecker(
    tile: Tile, covariance: Float[np.ndarray, "t t"], nugget: float, data: KernelData
) -> KernelFit:
    """Fit A = B̄⊗K₀/mean(diag K₀) + η·I⊗diag(1/n), B̄ = B/mean(diag B), to values (m, t), and leave
    out each fold.

    With eigendecompositions B̄ = U diag(b) Uᵀ and D^½K₀D^½ = V diag(λ) Vᵀ, D = diag(n), the system
    falls into t diagonal ones: O(t³ + m³ + mt(m + t)), docs/mathematics.md section 2 (special case
    II of Sun, Barp and Briol 2023). With P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹ in one eigendirection, the
    errors at fold F of a fit without it are P_FF⁻¹(Py)_F.

    Where draws are shared and η → 0 the estimates do not depend on B (autokrigeability): it matters
    with a real ridge.

    Returns
    -------
    KernelFit with p = 1: mean (t, 1), control (k, b, t), refits (s, t, 1), model_covariance (1, t,
    t).
    """
    (gram, basis, values, counts, _), folds = dense_system(tile, data), data.folds
    subsets = Subsets.of(folds.num_folds)
    m, t = values.shape
    root = np.sqrt(counts)[:, None]
    # N^(-1/2) K₀ N^(-1/2) of docs/mathematics.md section 2, N = diag(1/n): the nugget becomes a
    # multiple of the identity, and one decomposition serves every task.
    spectrum, vectors = np.linalg.eigh(gram * root * root.T)
    spectrum = np.maximum(spectrum, 0.0)
    # In B's eigenbasis tasks do not interact: one diagonal system for each direction.
    between, mixing = np.linalg.eigh(covariance / np.mean(np.diagonal(covariance)))
    # A B of lower rank has eigenvalues of −1e-16 by rounding. Times λ they may exceed a tiny
    # nugget, and A would not be positive definite.
    between = np.maximum(between, 0.0)
    rotated, originals, columns = (
        vectors.T @ (root * values) @ mixing,
        values @ mixing,
        vectors.T @ (root * basis),
    )
    mean, fold_means, amplitude = np.empty(t), np.empty((folds.num_folds, t)), np.empty(t)
    held_out, real = folds.held_out()
    errors = np.zeros((*held_out.shape, t))
    parts = [(np.empty((len(sets), t)), folds.rows_of(sets)) for sets in subsets]
    for s, (b, y, original) in enumerate(zip(between, rotated.T, originals.T, strict=True)):
        # Diagonal of A⁻¹ in direction s. Negative eigenvalues of rounding were cut above, or it
        # could be infinite.
        weight = 1.0 / (b * spectrum + nugget)
        half = np.sqrt(weight)[:, None]
        # Generalised least squares for the constant and the polynomial by QR, as in
        # docs/mathematics.md section 2 (semi-exact); P y without forming P.
        q, r = np.linalg.qr(half * columns)
        inverse = solve_lower(r.T, np.eye(len(r))).T
        along = q.T @ (half[:, 0] * y)
        projected = weight * y - half[:, 0] * (q @ along)
        mean[s] = inverse[0] @ along
        amplitude[s] = max(y @ projected / (m - len(r)), 0.0) * (inverse[0] @ inverse[0])
        for k, (out, _) in enumerate(folds.rows()):
            rows = vectors[out]
            onto = rows @ (half * q)
            # P_FF of the fold: leaving it out takes a solve of its size, where a refit would be
            # another decomposition.
            block = (rows * weight) @ rows.T - onto @ onto.T
            error = PositiveMatrix(block).solve((rows @ projected)[:, None])[:, 0]
            errors[k, : len(out), s] = error / root[out, 0]
            fold_means[k, s] = mean[s] - inverse[0] @ (onto.T @ error)
        for estimates, sets in parts:
            for subset, index in enumerate(sets):
                system = b * gram[np.ix_(index, index)], 1.0 / counts[index], nugget
                # Halves and quarters are other matrices, whose decomposition is not that of the
                # whole: factorised.
                estimates[subset, s] = fit_rows(*system, basis[index], original[index, None])[
                    0
                ].coefficients[0, 0]

    # Back from B's eigendirections to the tasks: (k, s)·(s, t).
    means = fold_means @ mixing.T
    control = values[held_out] - errors @ mixing.T - means[:, None, :]
    return KernelFit(
        mean=(mixing @ mean)[:, None],
        control=np.where(real[:, :, None], control, 0.0),
        refits=Refits(
            means[..., None], *((task_means @ mixing.T)[..., None] for task_means, _ in parts)
        ),
        model_covariance=((mixing * amplitude) @ mixing.T)[None],
        nugget=np.asarray(nugget),
        num_steps=np.zeros((), int),
        converged=np.asarray(np.isfinite(errors).all()),
    )


def shared_covariance(tile: Tile, nugget: float, data: KernelData) -> Float[np.ndarray, "t t"]:
    """Return the restricted-likelihood covariance of tasks that share their draws, B̂ = YᵀPY/(m −
    q).

    Exact where the noise is separable too, B⊗(K₀ + ηD⁻¹), or absent. Sun, Barp and Briol (2023),
    special case II.
    """
    gram, basis, values, counts, _ = dense_system(tile, data)
    # YᵀPY without P: the dual variables are PY.
    solution, _ = fit_rows(gram, 1.0 / counts, nugget, basis, values)
    return values.T @ solution.dual / (len(values) - basis.shape[1])


MAX_ROWS = 7_000
"""Rows of all tasks up to which the joint system is factorised. Larger ones are solved by conjugate
gradients."""

JOINT_RANK = 600

MIN_JOINT_NUGGET = 1e-8
"""Smallest tuned nugget for joint conjugate gradients of rank `JOINT_RANK`: 62 tasks of 100 draws
take two products.

A start from the tasks' own solutions or along a path of nuggets saves nothing. At a nugget of 1e-6
and rank 300 those tasks took 23 products from zero, 32 from the tasks' own solutions, and 8 + 24
along the path.
"""

SCALAR_MARGIN = 2.0
"""Factor by which a task's own fit must lower the `judged_variance`, or the joint fit is kept."""


class VectorValued(AbstractControlVariate):
    """Control functionals of T related integrands in one matrix-valued Stein space.

    g_t(x) = Σ_{t'j} B_{tt'} k₀(x, x_{t'j}) c_{t'j}, with the score of Π_t at x and of Π_t' at its
    own draws: the minimiser of Sun, Barp and Briol (2023), equation 8, with one coefficient a datum
    instead of T, constants by generalised least squares, and B, kernel and nugget by restricted
    maximum likelihood (docs/mathematics.md section 2).

    Integrands that share *all* their draws help each other only if the nugget is not small: without
    noise their estimates do not depend on B. B helps where draws or targets differ, as for several
    fidelities or temperatures. Each task is compared, cross-fitted, with the same method on that
    task alone, which is kept where it halves the error variance (negative transfer); `info` and
    `method` say which was kept.

    Parameters
    ----------
    kernel : on standardised coordinates; a `Coregionalisation` brings its own B. By default a
        squared exponential with one lengthscale per coordinate, tuned.
    covariance : (T, T) the B of a kernel that is given, or fixed while the kernel is tuned; learnt
        by default.
    nugget : relative η; tuned by default, 1e-8 with a kernel and covariance that are given.
    degree : polynomial Stein features of this total degree are unpenalised in every task, as in
        `SemiExact`.
    order : of the Langevin operator: 1, or 2 (Theorem C.1; kernels smooth enough for it). A
        `Coregionalisation` brings its own.
    tuning : `TaskREML(...)` or, for one target, `ConvexTaskCovariance(...)`. Integrands that share
        their draws are tuned by `GridREML`, whatever `TaskREML` is given here.
    solver : `Cholesky()` or `ConjugateGradients(...)`; by default Cholesky up to 7,000 rows over
        all tasks, then conjugate gradients of rank 600. Integrands that share more than 6,000 draws
        are, of order one, each fitted alone by `ConjugateGradients`, because B hardly changes their
        estimates.
    guard : whether to compare with each task's own fit.
    """

    kernel: AbstractKernel | Coregionalisation | None = None
    covariance: Any = None
    nugget: float | None = None
    degree: int = 0
    order: int = 1
    tuning: TaskREML | ConvexTaskCovariance | None = None
    solver: Cholesky | ConjugateGradients | None = None
    guard: bool = True

    def __check_init__(self) -> None:
        where = "VectorValued"
        kernels, tunings = (
            (AbstractKernel, Coregionalisation, None),
            (TaskREML, ConvexTaskCovariance, None),
        )
        check_kind(where, "kernel", self.kernel, kernels, "Such as SquaredExponential(2.0).")
        check_kind(where, "tuning", self.tuning, tunings, "Such as TaskREML().")
        solvers = (Cholesky, ConjugateGradients, None)
        check_kind(where, "solver", self.solver, solvers, "Such as ConjugateGradients().")
        check_count(where, "degree", self.degree, "Use 0, 1 or 2.", least=0, most=HIGHEST_DEGREE)
        check_count(where, "order", self.order, "It is that of the Langevin operator.", most=2)
        check_number(where, "nugget", self.nugget, "It is relative: 1e-10 to 1.", optional=True)
        check_flags(where, guard=self.guard)
        if self.covariance is not None:
            check_covariance(where, self.covariance)
            if isinstance(self.kernel, Coregionalisation):
                raise InputError(
                    where, "no `covariance` beside a Coregionalisation", "both", "Drop one."
                )
        if isinstance(self.tuning, ConvexTaskCovariance) and self._brings_covariance:
            cure = "Pass a kernel alone, or tuning=TaskREML()."
            raise InputError(
                where, "no covariance beside ConvexTaskCovariance, which finds it", "both", cure
            )

    @property
    def label(self) -> str:
        return f"VectorValued(degree={self.degree})" if self.degree else "VectorValued()"

    @property
    def joint_estimator(self) -> Callable[..., Any]:
        from mcmcpost.tasks.joint import JointEstimate, TaskInput, estimate_jointly

        def estimate(samples: Mapping[str, Sample], options: Options) -> JointEstimate:
            tasks = {
                name: TaskInput(sample, options.bad_scores) for name, sample in samples.items()
            }
            return estimate_jointly(tasks, self, options)

        return estimate

    @property
    def _order(self) -> int:
        return self.kernel.order if isinstance(self.kernel, Coregionalisation) else self.order

    @property
    def _brings_covariance(self) -> bool:
        return self.covariance is not None or isinstance(self.kernel, Coregionalisation)

    @property
    def _tunes(self) -> bool:
        return self.kernel is None or self.tuning is not None or not self._brings_covariance

    def crossfit(self, problem: Problem) -> FoldFit:
        """Fit the integrands of one trace, which share their draws: one eigendecomposition for all
        of them."""
        refuse_weighted(self.label, problem)
        several = isinstance(self.kernel, Coregionalisation) and len(self.kernel.kernels) > 1
        iterative = problem.num_states > DENSE_LIMIT or isinstance(self.solver, ConjugateGradients)
        second_order = self._order == 2 and (self.kernel is None or iterative)
        if several or second_order or isinstance(self.tuning, ConvexTaskCovariance):
            # What the Kronecker form does not have, sums of kernels, tuned or iterative second
            # order, and a convex B, goes through the joint system of copies.
            copies = tuple(problem.select(np.array([j])) for j in range(problem.values.shape[1]))
            return concatenate_fits(self.crossfit_joint(join(copies)).fits)
        if problem.folds.num_train < MIN_TRAIN:
            return no_control(problem, Status.TOO_FEW_DRAWS, self.label)
        basis = polynomial_basis(problem, exponents_of_degree(problem.draws.shape[1], self.degree))
        size = basis.shape[1]
        if problem.folds.num_train < DRAWS_PER_FEATURE * size:
            return no_control(problem, Status.TOO_FEW_DRAWS, self.label, {"num_features": size - 1})
        if iterative:
            # Too many states for an eigendecomposition, and B hardly matters for shared draws
            # (autokrigeability, docs/mathematics.md section 2).
            fit = self._each_alone().crossfit(problem)
            return fit._replace(method=tuple(f"{label} alone" for label in fit.method))
        given = (
            self.kernel.kernels[0] if isinstance(self.kernel, Coregionalisation) else self.kernel
        )
        tuning = GridREML(polish=True, max_steps=20, shared=True) if given is None else None
        (setting,) = tune(problem, basis, given, self.nugget, tuning, Cholesky())
        tile = (
            SteinTile(setting.kernel) if self._order == 1 else SecondOrderSteinTile(setting.kernel)
        )
        data = kernel_data((problem.draws, problem.scores), basis, problem.values, problem)
        between = self._covariance_given(problem.values.shape[1])
        if between is None:
            between = floored(shared_covariance(tile, setting.nugget, data))
        solved = crossfit_kronecker(tile, between, setting.nugget, data)
        info = setting.describe() | {"degree": self.degree, "task_covariance": between.tolist()}
        together = _control_fit(problem, solved, self.label, info)
        if not self.guard or problem.values.shape[1] == 1:
            return together
        alone = self._alone(problem) if self._order == 2 else self._each_alone().crossfit(problem)
        return self._guarded(problem, together, alone)

    def _each_alone(self) -> ControlFunctional | SemiExact:
        """Return the scalar method for integrands that share their draws, which shares the
        factorisations too."""
        kernel = (
            self.kernel.kernels[0] if isinstance(self.kernel, Coregionalisation) else self.kernel
        )
        tuning = GridREML() if kernel is None else None
        if self.degree:
            return SemiExact(self.degree, kernel, self.nugget, tuning, self.solver)
        return ControlFunctional(kernel, self.nugget, tuning, self.solver)

    def crossfit_joint(self, joint: JointProblem) -> JointFit:
        """Fit the tasks of a joint problem."""
        return self._fit_tasks(joint, alone=False)

    def _covariance_given(self, num_tasks: int) -> Float[np.ndarray, "t t"] | None:
        given = (
            self.kernel.covariances[0]
            if isinstance(self.kernel, Coregionalisation)
            else self.covariance
        )
        if given is None:
            return None
        matrix = np.asarray(given, float)
        if matrix.shape != (num_tasks, num_tasks):
            expected = f"a covariance of {num_tasks} tasks"
            raise InputError(
                "VectorValued", expected, matrix.shape, "One row for each integrand that varies."
            )
        return matrix

    def _guarded(self, problem: Problem, together: FoldFit, alone: FoldFit) -> FoldFit:
        joint, scalar = judged_variance(problem, together), judged_variance(problem, alone)
        with np.errstate(invalid="ignore"):
            # The lead is with the joint fit: the smaller of two estimated errors is too small, and
            # a contrast of tasks has its error only there.
            better = ~np.isfinite(scalar) | (joint < SCALAR_MARGIN * scalar)
        renamed = alone._replace(method=tuple(f"{label} alone" for label in alone.method))
        info = together.info | {"joint": better.tolist()}
        return merge_fits(renamed, together, better)._replace(info=info)

    def _fit_tasks(self, joint: JointProblem, *, alone: bool) -> JointFit:
        num_tasks = joint.num_tasks
        design, features = _joint_design(joint, self.degree)
        each = min(problem.folds.num_train for problem in joint.problems)
        # A kernel that is tuned needs more draws than one that is given.
        few = joint.folds.num_train < (MIN_TRAIN if self._tunes else MIN_GIVEN)
        if few or (features and each < DRAWS_PER_FEATURE * (features + 1)):
            plain = tuple(
                no_control(problem, Status.TOO_FEW_DRAWS, self.label) for problem in joint.problems
            )
            return JointFit(plain, np.zeros((num_tasks, num_tasks)), np.eye(num_tasks))
        fixed = None if alone else self._covariance_given(num_tasks)
        model = TaskModel(self.kernel, fixed, self.nugget, self.order, self.tuning)
        kernel, nugget = tune_tasks(joint, design, model)
        tile = matrix_stein_tile(kernel)
        rows = (joint.draws, joint.scores, joint.indicators)
        data = kernel_data(rows, design, joint.values[:, None], joint)
        # 7,000 rows are 400 MB of matrix, and as much again for its factor.
        solver = self.solver or (
            Cholesky()
            if len(joint.folds.everyone) <= MAX_ROWS
            else ConjugateGradients(rank=JOINT_RANK)
        )
        if isinstance(solver, ConjugateGradients) and self.nugget is None:
            # Conjugate gradients need the condition that a larger nugget gives; a nugget that was
            # asked for is kept.
            nugget = max(
                nugget, MIN_JOINT_NUGGET if solver.rank >= JOINT_RANK else MIN_ITERATIVE_NUGGET
            )
        if isinstance(solver, Cholesky):
            fit = crossfit_dense(tile, nugget, data, num_constants=num_tasks)
        else:
            fit = crossfit_iterative(
                tile, jnp.asarray(nugget), solver, data, num_constants=num_tasks
            )
        between = np.asarray(kernel.covariances).sum(axis=0)
        info = {
            "kernels": [type(k).__name__ for k in kernel.kernels],
            "parameters": kernel_parameters(kernel.kernels),
            "task_covariance": between.tolist(),
            "nugget": nugget,
            "nugget_used": float(fit.nugget),
            "num_products": int(fit.num_steps),
            "solver": type(solver).__name__,
            "degree": self.degree,
        }
        control = joint.folds.scatter(np.asarray(fit.control)[:, :, 0], len(joint.values))
        fits = []
        for problem, mine, control_of_task in joint.by_problem(control):
            one = FoldFit(
                mean=np.asarray(fit.mean)[mine, 0],
                control=control_of_task,
                refits=Refits(*(np.asarray(means)[:, mine, 0] for means in fit.refits)),
                doubt=np.zeros(len(mine)),
                status=(self._status(fit),) * len(mine),
                method=(self.label,) * len(mine),
                info=info,
            )
            if self.guard and not alone and num_tasks > 1:
                # Negative transfer: a task can be worse off together. It is compared on the same
                # folds.
                one = self._guarded(problem, one, self._alone(problem))
            fits.append(one)
        return JointFit(tuple(fits), np.asarray(fit.model_covariance)[0], between)

    def _alone(self, problem: Problem) -> FoldFit:
        """Fit each integrand of a problem by the same method without the others, tuning what the
        joint fit tunes."""
        kernel = self.kernel
        if isinstance(kernel, Coregionalisation):
            kernel = kernel.kernels[0] if len(kernel.kernels) == 1 else None
        everything_given = kernel is not None and self.tuning is None and self._brings_covariance
        # A task alone has no B to be given; it would tune the nugget, which the joint fit took by
        # default.
        nugget = DEFAULT_NUGGET if everything_given and self.nugget is None else self.nugget
        method = eqx.tree_at(
            lambda v: (v.kernel, v.covariance, v.nugget, v.order),
            self,
            (kernel, None, nugget, self._order),
            is_leaf=lambda x: x is None,
        )
        parts = (join((problem.select(np.array([j])),)) for j in range(problem.values.shape[1]))
        return concatenate_fits(
            tuple(method._fit_tasks(task, alone=True).fits[0] for task in parts)
        )

    def _status(self, fit: KernelFit) -> Status:
        if not bool(fit.converged):
            return Status.NOT_CONVERGED
        raised = self.nugget is not None and float(fit.nugget) > self.nugget * 1.001
        return Status.NUGGET_RAISED if raised else Status.CONTROLLED


def _joint_design(joint: JointProblem, degree: int) -> tuple[Float[np.ndarray, "m q"], int]:
    """Return task indicators followed by each task's own polynomial features, and how many those
    are per task."""
    columns = [joint.indicators]
    features = 0
    for t, (i, _) in enumerate(joint.tasks):
        problem = joint.problems[i]
        basis = polynomial_basis(problem, exponents_of_degree(problem.draws.shape[1], degree))
        features = basis.shape[1] - 1
        block = np.zeros((len(joint.values), features))
        # Each task has polynomials of its own; the basis of a problem is padded beyond its states.
        block[joint.rows_of(t)] = basis[: problem.num_states, 1:]
        columns.append(block)
    return np.concatenate(columns, axis=1), features


def _control_fit(problem: Problem, fit: KernelFit, label: str, info: dict[str, Any]) -> FoldFit:
    """Return the fit of integrands that share their draws."""
    mean = np.asarray(fit.mean)[:, 0]
    control = problem.folds.scatter(np.asarray(fit.control), len(problem.values))
    status = Status.CONTROLLED if bool(fit.converged) else Status.NOT_CONVERGED
    return FoldFit(
        mean=mean,
        control=control,
        refits=Refits(*(np.asarray(means)[:, :, 0] for means in fit.refits)),
        doubt=np.zeros(len(mean)),
        status=(status,) * len(mean),
        method=(label,) * len(mean),
        info=info,
    )
