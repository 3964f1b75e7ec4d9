"""Gradient Gram solves of GPyTorch's RBFKernelGrad, for another interpreter: prints seconds and
residual as JSON.

    PYTHON -m benchmarks.gp._gradient_peers SYSTEM.npz REPEATS

That interpreter needs torch and gpytorch, and nothing of ours. The file holds points ``X`` (n, d),
their gradients ``G`` (n, d), a ``lengthscale`` and the ``noise`` of a gradient. The kernel's matrix
is that of values and gradients together; the rows of the values, of which there are none, are left
out before it is factorised.
"""

import json
import sys
import time

import gpytorch
import numpy as np
import torch


def main(path: str, repeats: int) -> None:
    system = np.load(path)
    x, wanted = (torch.from_numpy(system[name]) for name in ("X", "G"))
    n, d = x.shape
    kernel = gpytorch.kernels.RBFKernelGrad().double()
    kernel.lengthscale = float(system["lengthscale"])
    right = wanted.reshape(-1, 1)
    slopes = torch.arange(n * (d + 1)).reshape(n, d + 1)[:, 1:].reshape(-1)

    def matrix() -> torch.Tensor:
        gram = kernel(x).to_dense()[slopes][:, slopes]
        gram.diagonal().add_(float(system["noise"]))
        return gram

    def solve() -> torch.Tensor:
        return torch.cholesky_solve(right, torch.linalg.cholesky(matrix()))

    taken = []
    with torch.no_grad():
        solve()
        while not taken or (len(taken) < repeats and sum(taken) < 0.5):
            start = time.perf_counter()
            solution = solve()
            taken.append(time.perf_counter() - start)
        residual = float(torch.linalg.norm(matrix() @ solution - right) / torch.linalg.norm(right))
    print(json.dumps({"seconds": min(taken), "residual": residual}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
