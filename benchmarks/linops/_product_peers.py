"""Kernel products of KeOps and GPyTorch, for another interpreter: prints CPU seconds as JSON.

    PYTHON -m benchmarks.linops._product_peers N D K

That interpreter needs torch, pykeops and gpytorch, and nothing of ours.
"""

import json
import sys
import time

import torch


def seconds(call) -> float:
    call()
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def main(n: int, d: int, k: int) -> None:
    import gpytorch
    from pykeops.torch import LazyTensor

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, dtype in (("fp32", torch.float32), ("fp64", torch.float64)):
        x = torch.randn(n, d, generator=generator, dtype=dtype)
        v = torch.randn(n, k, generator=generator, dtype=dtype)

        def keops(x=x, v=v):
            r = (3 * (LazyTensor(x[:, None]) - LazyTensor(x[None])).square().sum(-1)).sqrt()
            return ((1 + r) * (-r).exp()) @ v

        kernel = gpytorch.kernels.MaternKernel(nu=1.5).to(dtype)
        kernel.lengthscale = 1.0

        def gpytorch_product(x=x, v=v, kernel=kernel):
            with torch.no_grad():
                return kernel(x) @ v

        found[f"KeOps {name}"] = seconds(keops)
        found[f"GPyTorch {name}"] = seconds(gpytorch_product)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
