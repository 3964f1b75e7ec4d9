"""One estimate of a log evidence by one method."""

from typing import Any, NamedTuple

from mcmcpost._types import Status


class EvidenceEstimate(NamedTuple):
    """An estimate of log p(y) with its Monte Carlo standard error, in nats.

    method : as reported, for example ``bridge (warp-III)``.
    value, mcse : log evidence and its standard error; NaN where undefined.
    status : ``controlled`` or ``plain`` for a good estimate; ``not_converged``, ``too_few_draws``, ``undefined``.
    info : JSON-able facts.
    """

    method: str
    value: float
    mcse: float
    status: Status
    info: dict[str, Any]
