"""Model evidence: from posterior draws by bridges, from power posteriors by integration, and how models compare."""

from mcmcpost.evidence.bridge import MAX_PROPOSALS, MIN_PROPOSALS, BridgeOverlap, bridge_sampling, check_draws
from mcmcpost.evidence.compare import EvidenceComparison, compare_models, disagreements
from mcmcpost.evidence.ladders.barrier import Barrier, PathDiagnostics, ladder_barrier
from mcmcpost.evidence.ladders.ladder import (
    MAX_RUNGS,
    PATH_POWER,
    REFERENCE_POWER,
    EvidenceEstimate,
    Exchange,
    Ladder,
    LadderWarning,
    TemperedTarget,
    adaptive_ladder,
    check_temperatures,
    geometric_ladder,
    gradient_finding,
    likelihood_finding,
    make_ladder,
    power_ladder,
    repeated_fraction,
)
from mcmcpost.evidence.ladders.lanes import Evaluation, HamiltonianKernel, evaluate_at
from mcmcpost.evidence.ladders.reference import place_rungs, reference_target
from mcmcpost.evidence.ladders.sampling import (
    LadderStats,
    SampledLadder,
    sample_ladder,
    sample_more_rungs,
)
from mcmcpost.evidence.laplace import laplace_importance
from mcmcpost.evidence.log_evidence import (
    EVIDENCE_GROUP,
    PATHS,
    Evidence,
    check_options,
    estimate_log_evidence,
    with_bridge,
)
from mcmcpost.evidence.mbar import stepping_stone
from mcmcpost.evidence.normal import Normal, fit_normal
from mcmcpost.evidence.pooled import PooledPath, pooled_path
from mcmcpost.evidence.posterior import PosteriorDraws, estimate_from_posterior, evaluate_draws, evaluate_rows
from mcmcpost.evidence.rules import corrected_rule, discretisation_errors, simpson_rule, trapezoid_rule
from mcmcpost.evidence.rungs import LadderCheck, RungHealth, RungMeans, check_ladder, control_rungs, examine_rungs
from mcmcpost.evidence.warp import Warp, fit_warp

__all__ = [
    "EVIDENCE_GROUP",
    "MAX_PROPOSALS",
    "MAX_RUNGS",
    "MIN_PROPOSALS",
    "PATHS",
    "PATH_POWER",
    "REFERENCE_POWER",
    "Barrier",
    "BridgeOverlap",
    "Evaluation",
    "Evidence",
    "EvidenceComparison",
    "EvidenceEstimate",
    "Exchange",
    "HamiltonianKernel",
    "Ladder",
    "LadderCheck",
    "LadderStats",
    "LadderWarning",
    "Normal",
    "PathDiagnostics",
    "PooledPath",
    "PosteriorDraws",
    "RungHealth",
    "RungMeans",
    "SampledLadder",
    "TemperedTarget",
    "Warp",
    "adaptive_ladder",
    "bridge_sampling",
    "check_draws",
    "check_ladder",
    "check_options",
    "check_temperatures",
    "compare_models",
    "control_rungs",
    "corrected_rule",
    "disagreements",
    "discretisation_errors",
    "estimate_from_posterior",
    "estimate_log_evidence",
    "evaluate_at",
    "evaluate_draws",
    "evaluate_rows",
    "examine_rungs",
    "fit_normal",
    "fit_warp",
    "geometric_ladder",
    "gradient_finding",
    "ladder_barrier",
    "laplace_importance",
    "likelihood_finding",
    "make_ladder",
    "place_rungs",
    "pooled_path",
    "power_ladder",
    "reference_target",
    "repeated_fraction",
    "sample_ladder",
    "sample_more_rungs",
    "simpson_rule",
    "stepping_stone",
    "trapezoid_rule",
    "with_bridge",
]
