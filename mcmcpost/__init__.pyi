# The public names, each with the file that it is imported from on first use; read by `lazy_loader` and type checkers.

from . import (
    control as control,
    evidence as evidence,
    gp as gp,
    hyper as hyper,
    io as io,
    kernels as kernels,
    linops as linops,
    linsolve as linsolve,
    optimize as optimize,
    report as report,
    scores as scores,
    stein as stein,
    surrogate as surrogate,
)
from ._core.errors import (
    InputError as InputError,
    InputTypeError as InputTypeError,
    MissingPackageError as MissingPackageError,
)
from ._core.status import Status as Status
from .api.derived import (
    correlation as correlation,
    covariance as covariance,
    delta_method as delta_method,
    standard_deviation as standard_deviation,
    variance as variance,
)
from .api.evidence import (
    EvidenceWarning as EvidenceWarning,
    bridge_evidence as bridge_evidence,
    compare_evidence as compare_evidence,
    ladder_from_arrays as ladder_from_arrays,
    laplace_evidence as laplace_evidence,
    log_evidence as log_evidence,
)
from .api.expectation import (
    expectation as expectation,
    joint_expectation as joint_expectation,
    pool_estimates as pool_estimates,
    quantile as quantile,
    summary as summary,
)
from .api.predictive import elpd as elpd
from .api.question import METHODS as METHODS
from .api.report import html_report as html_report
from .api.sensitivity import (
    Derivatives as Derivatives,
    PriorChange as PriorChange,
    hyper_derivatives as hyper_derivatives,
    reweight_prior as reweight_prior,
)
from .api.weights import (
    kernel_stein_discrepancy as kernel_stein_discrepancy,
    stein_thinning as stein_thinning,
    stein_weights as stein_weights,
)
from .control import (
    REML as REML,
    Auto as Auto,
    ChainVariance as ChainVariance,
    ControlFunctional as ControlFunctional,
    ConvexTaskCovariance as ConvexTaskCovariance,
    Estimate as Estimate,
    GridREML as GridREML,
    JointEstimate as JointEstimate,
    KernelFamily as KernelFamily,
    Lasso as Lasso,
    LeastSquares as LeastSquares,
    MeanSquare as MeanSquare,
    NeuralNetwork as NeuralNetwork,
    PlainMean as PlainMean,
    PolynomialFamily as PolynomialFamily,
    Ridge as Ridge,
    Screened as Screened,
    SemiExact as SemiExact,
    SteinWeights as SteinWeights,
    Stochastic as Stochastic,
    TaskREML as TaskREML,
    TrainedVectorValued as TrainedVectorValued,
    VectorValued as VectorValued,
    ZeroVariance as ZeroVariance,
)
from .evidence import (
    Evidence as Evidence,
    EvidenceComparison as EvidenceComparison,
    EvidenceEstimate as EvidenceEstimate,
    HamiltonianKernel as HamiltonianKernel,
    LadderWarning as LadderWarning,
    geometric_ladder as geometric_ladder,
    power_ladder as power_ladder,
)
from .io import (
    ConvergenceWarning as ConvergenceWarning,
    adaptive_ladder as adaptive_ladder,
    add_rungs as add_rungs,
    attach_scores as attach_scores,
    barrier_ladder as barrier_ladder,
    check_tree as check_tree,
    from_arrays as from_arrays,
    from_blackjax as from_blackjax,
    from_cmdstan as from_cmdstan,
    from_dynesty as from_dynesty,
    from_numpyro as from_numpyro,
    ladder_from_traces as ladder_from_traces,
    load_tree as load_tree,
    resample as resample,
    sample_power_posteriors as sample_power_posteriors,
    save_tree as save_tree,
)
from .linsolve import Cholesky as Cholesky, ConjugateGradients as ConjugateGradients
from .report import (
    plot_controlled_forest as plot_controlled_forest,
    plot_evidence_path as plot_evidence_path,
    plot_gain as plot_gain,
    plot_residual_autocorrelation as plot_residual_autocorrelation,
    plot_score_check as plot_score_check,
    plot_task_correlation as plot_task_correlation,
)
from .scores import ScoreCheck as ScoreCheck, ScoreError as ScoreError, ScoreWarning as ScoreWarning
from .stein import Coregionalisation as Coregionalisation
from .surrogate import (
    SubspaceSurrogate as SubspaceSurrogate,
    SurrogateHMC as SurrogateHMC,
)

__version__: str
