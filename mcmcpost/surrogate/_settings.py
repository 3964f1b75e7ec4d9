"""The choices of surrogate Hamiltonian Monte Carlo."""

from typing import NamedTuple

from mcmcpost._checks import fault
from mcmcpost.surrogate._designs import AbstractSurrogate


class Settings(NamedTuple):
    """The choices of `SurrogateHMC`, by the same names."""

    surrogate: AbstractSurrogate
    num_steps: int
    refinement: int
    true_gradient_probability: float
    delayed_acceptance: int
    max_gradient_error: float
    history_size: int


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot run.

    Raises
    ------
    ValueError : says which.
    """
    where = "SurrogateHMC"
    for name in ("num_steps", "refinement", "delayed_acceptance", "history_size"):
        value = getattr(settings, name)
        if value < 1:
            raise ValueError(fault(where, f"`{name}` of at least 1", value, "Ask for more."))
    chance, error = settings.true_gradient_probability, settings.max_gradient_error
    if not 0 <= chance <= 1:
        raise ValueError(fault(where, "`true_gradient_probability` in [0, 1]", chance, "Use 0.1."))
    if not error >= 0:
        raise ValueError(fault(where, "`max_gradient_error` not negative", error, "Use 0.2."))
