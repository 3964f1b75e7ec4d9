"""Read by mypy in an environment that has the wheel: a wrong type of a user's is found, and right
use passes."""

import mcmcpost as mp

tree = mp.load_example("lotka_volterra")
gains = mp.expectation(tree, method=mp.ZeroVariance(2)).gain
mp.load_example(3)  # type: ignore[arg-type]  # unused, and so an error, where the package has no types
