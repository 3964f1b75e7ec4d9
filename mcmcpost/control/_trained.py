"""Vector-valued control variates that are trained rather than solved for: kernels, polynomials, networks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from mcmcpost._checks import fault
from mcmcpost._types import Status
from mcmcpost.control._joint_problem import JointFit, JointProblem, join
from mcmcpost.control._method import (
    AbstractControlVariate,
    ControlFit,
    concatenate_fits,
    fold_jackknife,
    mean_doubt,
    no_control,
)
from mcmcpost.control._neural import NeuralNetwork
from mcmcpost.control._polynomial_tasks import PolynomialTasks
from mcmcpost.control._problem import Problem
from mcmcpost.control._stochastic import Stochastic, StochasticFit, fit_stochastic
from mcmcpost.control._task_family import AbstractTaskControl, FixedCovariance, KernelTasks, TaskRows
from mcmcpost.control._zero_variance import MIN_TRAIN
from mcmcpost.kernels import AbstractKernel
from mcmcpost.stein import check_covariance


class KernelFamily(eqx.Module):
    """g_t = Σ_j B_{t t_j} k₀(·, x_j) θ_j, one coefficient a draw.

    kernel : on standardised coordinates. covariance : (T, T) B, where training starts or, by default, stays; identity
    where None.
    """

    kernel: AbstractKernel
    covariance: Any = None

    def start(self, rows: TaskRows, num_tasks: int, *, key: PRNGKeyArray) -> AbstractTaskControl:  # noqa: ARG002
        return KernelTasks.start(self.kernel, rows, _covariance(self.covariance, num_tasks))


class PolynomialFamily(eqx.Module):
    """g_t = Σ_{t'} B_{tt'} Σ_i Θ_{it'} L_t φ_i for monomials φ_i up to a total degree (Appendix C.2 and C.3).

    degree : of the polynomials. covariance : as for `KernelFamily`.
    """

    degree: int = 2
    covariance: Any = None

    def start(self, rows: TaskRows, num_tasks: int, *, key: PRNGKeyArray) -> AbstractTaskControl:  # noqa: ARG002
        return PolynomialTasks.start(rows, _covariance(self.covariance, num_tasks), degree=self.degree)


class TrainedVectorValued(AbstractControlVariate):
    """Train a family of vector-valued control variates by Adam on mini-batches, for sizes where no solve fits.

    Algorithms 1 and 2 of Sun, Barp and Briol (2023), neural families of Appendix C.2, polynomials of C.3, the chain
    variance of A.1. Where a solve does fit, `VectorValued` is faster and better by orders of magnitude
    (``benchmarks/RESULTS.md``). The estimate is the mean of the held-out residuals: each fold's family is trained on
    the others. A copy of a state counts once in training.

    Parameters
    ----------
    family : `KernelFamily`, `PolynomialFamily` or `NeuralNetwork`.
    key : of everything random: the order of the draws and the first weights of a network.
    training : `Stochastic(...)`.
    """

    family: KernelFamily | PolynomialFamily | NeuralNetwork
    key: PRNGKeyArray = eqx.field(kw_only=True)
    training: Stochastic | None = None

    @property
    def label(self) -> str:
        return f"TrainedVectorValued({type(self.family).__name__})"

    def crossfit(self, problem: Problem) -> ControlFit:
        copies = tuple(problem.select(np.array([j])) for j in range(problem.values.shape[1]))
        return concatenate_fits(self.crossfit_joint(join(copies)).fits)

    def crossfit_joint(self, joint: JointProblem) -> JointFit:
        """Train on all rows but each fold's in turn, and on all rows."""
        training = self.training or Stochastic()
        t = joint.num_tasks
        if int(joint.train_mask.sum(axis=1).min()) < MIN_TRAIN:
            few = tuple(no_control(problem, Status.TOO_FEW_DRAWS, self.label) for problem in joint.problems)
            return JointFit(few, np.eye(t), np.eye(t))
        keys = jax.random.split(self.key, len(joint.held_out) + 1)
        whole = self._train(joint, joint.everyone[joint.everyone_mask], training, keys[0])
        control = np.zeros(len(joint.values))
        betas, finite, settled = [], bool(whole.finite), bool(whole.converged)
        for k, key in enumerate(keys[1:]):
            fit = self._train(joint, joint.train[k][joint.train_mask[k]], training, key)
            out = joint.held_out[k][joint.held_out_mask[k]]
            control[out] = np.asarray(fit.control(_rows(joint, out)))
            betas.append(np.asarray(fit.beta))
            finite, settled = finite and bool(fit.finite), settled and bool(fit.converged)
        covariance = getattr(whole.control, "covariance", None)
        between = np.eye(t) if covariance is None else np.asarray(covariance.matrix)
        info = {
            "loss": float(whole.loss),
            "num_steps": whole.num_steps,
            "finite": finite,
            "task_covariance": between.tolist(),
        }
        fits = []
        for problem, mine, part in joint.by_problem(control):
            if not finite:
                fits.append(no_control(problem, Status.NOT_CONVERGED, self.label, info))
                continue
            mean = problem.counts @ (problem.values - part) / problem.counts.sum()
            doubt = mean_doubt(problem, mean, part, np.zeros(len(mine)))
            jackknife = fold_jackknife(np.array(betas)[:, mine])
            status = Status.CONTROLLED if settled else Status.NOT_CONVERGED
            features = np.zeros(len(mine), int)
            labels = (self.label,) * len(mine)
            fits.append(ControlFit(mean, part, doubt, jackknife, features, (status,) * len(mine), labels, info))
        return JointFit(tuple(fits), np.eye(t), between)

    def _train(self, joint: JointProblem, index: np.ndarray, training: Stochastic, key: PRNGKeyArray) -> StochasticFit:
        first, order = jax.random.split(key)
        rows = _rows(joint, index)
        start = (
            self.family.start(joint.num_tasks, joint.draws.shape[1], key=first)
            if isinstance(self.family, NeuralNetwork)
            else self.family.start(rows, joint.num_tasks, key=first)
        )
        return fit_stochastic(start, rows, joint.values[index], training, key=order)


def _rows(joint: JointProblem, index: np.ndarray) -> TaskRows:
    return TaskRows(jnp.asarray(joint.draws[index]), jnp.asarray(joint.scores[index]), jnp.asarray(joint.labels[index]))


def _covariance(given: Any, num_tasks: int) -> FixedCovariance:
    matrix = np.eye(num_tasks) if given is None else np.asarray(given, float)
    check_covariance("TrainedVectorValued", matrix)
    if matrix.shape != (num_tasks, num_tasks):
        cure = "One row for each integrand that varies."
        raise ValueError(fault("TrainedVectorValued", f"a covariance of {num_tasks} tasks", matrix.shape, cure))
    return FixedCovariance(jnp.asarray(matrix))
