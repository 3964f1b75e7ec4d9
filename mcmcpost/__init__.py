"""What happens after MCMC: expectations with smaller errors, and errors that are honest."""

from importlib.metadata import (
    version,
)

from mcmcpost._core.status import Status
from mcmcpost.api.evidence import (
    EvidenceWarning,
    bridge_evidence,
    compare_evidence,
    ladder_from_arrays,
    laplace_evidence,
    log_evidence,
)
from mcmcpost.api.expectation import (
    METHODS,
    expectation,
    joint_expectation,
    kernel_stein_discrepancy,
    quantile,
    stein_thinning,
    stein_weights,
    summary,
)
from mcmcpost.api.report import html_report
from mcmcpost.control import (
    REML,
    Auto,
    ChainVariance,
    ControlFunctional,
    ConvexTaskCovariance,
    Estimate,
    GridREML,
    JointEstimate,
    KernelFamily,
    Lasso,
    LeastSquares,
    MeanSquare,
    NeuralNetwork,
    PlainMean,
    PolynomialFamily,
    Ridge,
    SemiExact,
    SteinWeights,
    Stochastic,
    TaskREML,
    TrainedVectorValued,
    VectorValued,
    ZeroVariance,
)
from mcmcpost.evidence import (
    Evidence,
    EvidenceComparison,
    EvidenceEstimate,
    HamiltonianKernel,
    LadderWarning,
    geometric_ladder,
    power_ladder,
)
from mcmcpost.io import (
    adaptive_ladder,
    add_rungs,
    attach_scores,
    check_tree,
    comparison_to_dataframe,
    estimate_to_dataframe,
    estimate_to_datatree,
    estimate_to_json_dict,
    evidence_methods,
    evidence_path,
    evidence_rungs,
    evidence_to_datatree,
    evidence_to_json_dict,
    from_arrays,
    from_blackjax,
    from_cmdstan,
    from_numpyro,
    joint_estimate_to_datatree,
    ladder_from_traces,
    load_tree,
    sample_power_posteriors,
    save_tree,
    weights_to_datatree,
)
from mcmcpost.linsolve import (
    Cholesky,
    ConjugateGradients,
)
from mcmcpost.report import (
    plot_controlled_forest,
    plot_evidence_path,
    plot_gain,
    plot_residual_autocorrelation,
    plot_score_check,
    plot_task_correlation,
)
from mcmcpost.scores import (
    ScoreCheck,
    ScoreError,
    ScoreWarning,
)
from mcmcpost.stein import (
    Coregionalisation,
)
from mcmcpost.surrogate import (
    PublishedSurrogate,
    SubspaceSurrogate,
    SurrogateHMC,
)

__version__ = version("mcmcpost")

# Trees and tables belong to `io`, which `control` may not import: its functions become methods here.
Estimate.to_datatree = estimate_to_datatree  # type: ignore[attr-defined]
Estimate.to_dataframe = estimate_to_dataframe  # type: ignore[attr-defined]
Estimate.to_json_dict = estimate_to_json_dict  # type: ignore[attr-defined]
JointEstimate.to_datatree = joint_estimate_to_datatree  # type: ignore[attr-defined]
SteinWeights.to_datatree = weights_to_datatree  # type: ignore[attr-defined]
Evidence.to_dataframe = evidence_methods  # type: ignore[attr-defined]
Evidence.rungs_to_dataframe = evidence_rungs  # type: ignore[attr-defined]
Evidence.path_to_dataframe = evidence_path  # type: ignore[attr-defined]
Evidence.to_datatree = evidence_to_datatree  # type: ignore[attr-defined]
Evidence.to_json_dict = evidence_to_json_dict  # type: ignore[attr-defined]
EvidenceComparison.to_dataframe = comparison_to_dataframe  # type: ignore[attr-defined]


__all__ = [
    "METHODS",
    "REML",
    "Auto",
    "ChainVariance",
    "Cholesky",
    "ConjugateGradients",
    "ControlFunctional",
    "ConvexTaskCovariance",
    "Coregionalisation",
    "Estimate",
    "Evidence",
    "EvidenceComparison",
    "EvidenceEstimate",
    "EvidenceWarning",
    "GridREML",
    "HamiltonianKernel",
    "JointEstimate",
    "KernelFamily",
    "LadderWarning",
    "Lasso",
    "LeastSquares",
    "MeanSquare",
    "NeuralNetwork",
    "PlainMean",
    "PolynomialFamily",
    "PublishedSurrogate",
    "Ridge",
    "ScoreCheck",
    "ScoreError",
    "ScoreWarning",
    "SemiExact",
    "Status",
    "SteinWeights",
    "Stochastic",
    "SubspaceSurrogate",
    "SurrogateHMC",
    "TaskREML",
    "TrainedVectorValued",
    "VectorValued",
    "ZeroVariance",
    "__version__",
    "adaptive_ladder",
    "add_rungs",
    "attach_scores",
    "bridge_evidence",
    "check_tree",
    "compare_evidence",
    "expectation",
    "from_arrays",
    "from_blackjax",
    "from_cmdstan",
    "from_numpyro",
    "geometric_ladder",
    "html_report",
    "joint_expectation",
    "kernel_stein_discrepancy",
    "ladder_from_arrays",
    "ladder_from_traces",
    "laplace_evidence",
    "load_tree",
    "log_evidence",
    "plot_controlled_forest",
    "plot_evidence_path",
    "plot_gain",
    "plot_residual_autocorrelation",
    "plot_score_check",
    "plot_task_correlation",
    "power_ladder",
    "quantile",
    "sample_power_posteriors",
    "save_tree",
    "stein_thinning",
    "stein_weights",
    "summary",
]
