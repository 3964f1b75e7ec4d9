"""GPyTorch's SGPR and SVGP on one regression, for another interpreter: saves predictions, prints a
JSON line.

    PYTHON -m benchmarks.gp._sparse_peers DATA.npz METHOD INDUCING RATE SECONDS CLOCK

That interpreter needs torch and gpytorch, and nothing of ours. The file holds ``X`` (n, d), ``y``
(n,), ``Z`` (t, d) and the starting ``noise``; the predictive ``mean`` and ``variance`` (t,) of
noisy outputs are saved in its place. Matérn-3/2 ARD from lengthscales 1 and amplitude 1, inducing
points from the first rows, then learnt; Adam at RATE, or SciPy's L-BFGS where RATE is ``lbfgs``
(for SGPR, whose loss is of all rows), until SECONDS have passed by CLOCK, ``wall`` or ``cpu``. SGPR
in double, SVGP in single precision with batches of 1,024, as Wenger et al. 2024 (Table S1) ran
them.
"""

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from scipy.optimize import minimize

BATCH = 1024
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def _kernel(d: int) -> Any:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=d))
    kernel.outputscale = 1.0
    kernel.base_kernel.lengthscale = 1.0
    return kernel


class _SGPR(gpytorch.models.ExactGP):
    def __init__(self, X: torch.Tensor, y: torch.Tensor, likelihood: Any, inducing: int) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.InducingPointKernel(
            _kernel(X.shape[1]), X[:inducing].clone(), likelihood
        )

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, points: torch.Tensor) -> None:
        distribution = CholeskyVariationalDistribution(len(points))
        super().__init__(
            VariationalStrategy(self, points, distribution, learn_inducing_locations=True)
        )
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = _kernel(points.shape[1])

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def _train(
    parameters: Any,
    loss: Callable[[], torch.Tensor],
    rate: float,
    seconds: float,
    clock: Callable[[], float],
) -> dict[str, float]:
    optimiser = torch.optim.Adam(parameters, lr=rate)
    began, start, cpu, losses = clock(), time.perf_counter(), time.process_time(), []
    while not losses or clock() - began < seconds:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    record = {
        "evaluations": len(losses),
        "wall s": time.perf_counter() - start,
        "cpu s": time.process_time() - cpu,
    }
    return record | {"start loss/n": losses[0], "end loss/n": losses[-1]}


def _train_by_lbfgs(
    parameters: list[torch.nn.Parameter],
    loss: Callable[[], torch.Tensor],
    seconds: float,
    clock: Callable[[], float],
) -> dict[str, float]:
    began, start, cpu = clock(), time.perf_counter(), time.process_time()
    seen: list[tuple[float, np.ndarray]] = []

    def put(x: np.ndarray) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(x.copy()), parameters)

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        if seen and clock() - began >= seconds:
            raise TimeoutError
        put(x)
        for parameter in parameters:
            parameter.grad = None
        value = loss()
        value.backward()
        seen.append((value.item(), x.copy()))
        return value.item(), torch.cat(
            [parameter.grad.flatten() for parameter in parameters]
        ).numpy()

    with contextlib.suppress(TimeoutError):
        first = torch.nn.utils.parameters_to_vector(parameters).detach().numpy()
        minimize(
            evaluate,
            first,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 10_000, "maxfun": 20_000, "maxcor": 20},
        )
    lowest, best = min(seen, key=lambda pair: pair[0])
    put(best)
    record = {
        "evaluations": len(seen),
        "wall s": time.perf_counter() - start,
        "cpu s": time.process_time() - cpu,
    }
    return record | {"start loss/n": seen[0][0], "end loss/n": lowest}


def main(path: str, method: str, inducing: int, rate: str, seconds: float, clock: str) -> None:
    torch.manual_seed(0)
    data = np.load(path)
    dtype = torch.float64 if method == "SGPR" else torch.float32
    X, y, Z = (torch.from_numpy(data[name]).to(dtype) for name in ("X", "y", "Z"))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(dtype)
    likelihood.noise = float(data["noise"])
    if method == "SGPR":
        model: Any = _SGPR(X, y, likelihood, inducing).to(dtype)
        bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        parameters = list(model.parameters())

        def loss() -> torch.Tensor:
            return -bound(model(X), y)
    else:
        model = _SVGP(X[:inducing].clone())
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        parameters = [*model.parameters(), *likelihood.parameters()]

        def loss() -> torch.Tensor:
            rows = torch.randperm(len(y))[:BATCH]
            return -bound(model(X[rows]), y[rows])

    if rate == "lbfgs":
        record = _train_by_lbfgs(parameters, loss, seconds, CLOCKS[clock])
    else:
        record = _train(parameters, loss, float(rate), seconds, CLOCKS[clock])
    trained = time.process_time()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        predicted = likelihood(model(Z))
        np.savez(
            path, mean=predicted.mean.double().numpy(), variance=predicted.variance.double().numpy()
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    after = {
        "noise": likelihood.noise.item(),
        "predict s": time.process_time() - trained,
        "peak GB": peak,
    }
    print(json.dumps(record | after))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5]), sys.argv[6])
