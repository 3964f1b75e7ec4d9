"""A stand-in for ``bridgestan.StanModel``: its methods, on a density written by hand instead of a
compiled program."""

import numpy as np


class StanModel:
    """sigma > 0 with density σ exp(−σ²/2), and a (2, 2) matrix of unit normals; elements run by
    column, from one."""

    __module__ = "bridgestan.model"

    def param_names(self):
        return ["sigma", "z.1.1", "z.2.1", "z.1.2", "z.2.2"]

    def param_unc_names(self):
        return self.param_names()

    def param_unconstrain(self, theta):
        return np.concatenate([np.log(theta[:1]), theta[1:]])

    def log_density(self, theta_unc, *, propto=True, jacobian=True):
        if theta_unc[0] > 2.0:
            raise RuntimeError("Exception: sigma is too large")
        sigma = np.exp(theta_unc[0])
        constants = 0.0 if propto else -2.0 * np.log(2 * np.pi)
        return (
            constants
            + np.log(sigma)
            - sigma**2 / 2
            + jacobian * theta_unc[0]
            - theta_unc[1:] @ theta_unc[1:] / 2
        )

    def log_density_gradient(self, theta_unc, *, propto=True, jacobian=True):  # noqa: ARG002  (the real signature)
        first = 1 + jacobian - np.exp(2 * theta_unc[:1])
        return self.log_density(theta_unc), np.concatenate([first, -theta_unc[1:]])
