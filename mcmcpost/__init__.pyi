# The public names, each with the file that it is imported from on first use; read by `lazy_loader`
# and type checkers.

from . import (
    app as app,
    control as control,
    evidence as evidence,
    examples as examples,
    gp as gp,
    ladders as ladders,
    scores as scores,
    solve as solve,
    stein as stein,
    tasks as tasks,
    trees as trees,
)
from .app import (
    html_report as html_report,
    plot_controlled_forest as plot_controlled_forest,
    plot_distribution as plot_distribution,
    plot_evidence_path as plot_evidence_path,
    plot_gain as plot_gain,
    plot_residual_autocorrelation as plot_residual_autocorrelation,
    plot_score_check as plot_score_check,
    plot_task_correlation as plot_task_correlation,
)
from .control import (
    REML as REML,
    Auto as Auto,
    ControlFunctional as ControlFunctional,
    Curve as Curve,
    Distribution as Distribution,
    Estimate as Estimate,
    GridREML as GridREML,
    Lasso as Lasso,
    LeastSquares as LeastSquares,
    PlainMean as PlainMean,
    Ridge as Ridge,
    SemiExact as SemiExact,
    SteinWeights as SteinWeights,
    Structured as Structured,
    TraceMoments as TraceMoments,
    VectorFields as VectorFields,
    ZeroVariance as ZeroVariance,
)
from .core.errors import (
    InputError as InputError,
    InputTypeError as InputTypeError,
    MissingPackageError as MissingPackageError,
    Status as Status,
)
from .distributions import (
    distribution as distribution,
    quantile as quantile,
)
from .evidence import (
    Evidence as Evidence,
    EvidenceComparison as EvidenceComparison,
    EvidenceEstimate as EvidenceEstimate,
    LadderWarning as LadderWarning,
    geometric_ladder as geometric_ladder,
    power_ladder as power_ladder,
)
from .evidences import (
    EvidenceWarning as EvidenceWarning,
    bridge_evidence as bridge_evidence,
    compare_evidence as compare_evidence,
    ladder_from_arrays as ladder_from_arrays,
    laplace_evidence as laplace_evidence,
    log_evidence as log_evidence,
    savage_dickey as savage_dickey,
)
from .examples import load_example as load_example
from .expectations import (
    correlation as correlation,
    covariance as covariance,
    delta_method as delta_method,
    elpd as elpd,
    expectation as expectation,
    pool_estimates as pool_estimates,
    standard_deviation as standard_deviation,
    summary as summary,
    variance as variance,
)
from .gp import SubspaceSurrogate as SubspaceSurrogate, SurrogateHMC as SurrogateHMC
from .ladders import (
    HamiltonianKernel as HamiltonianKernel,
    adaptive_ladder as adaptive_ladder,
    add_rungs as add_rungs,
    barrier_ladder as barrier_ladder,
    ladder_from_traces as ladder_from_traces,
    sample_power_posteriors as sample_power_posteriors,
)
from .sample import METHODS as METHODS, structure as structure
from .scores import ScoreCheck as ScoreCheck, ScoreError as ScoreError, ScoreWarning as ScoreWarning
from .sensitivity import (
    Derivatives as Derivatives,
    PriorChange as PriorChange,
    hyper_derivatives as hyper_derivatives,
    reweight_prior as reweight_prior,
)
from .solve import Cholesky as Cholesky, ConjugateGradients as ConjugateGradients
from .stein import Coregionalisation as Coregionalisation
from .stein_rules import (
    kernel_stein_discrepancy as kernel_stein_discrepancy,
    stein_thinning as stein_thinning,
    stein_weights as stein_weights,
)
from .stopping import SampledUntil as SampledUntil, sample_until as sample_until
from .sums import moments as moments
from .tasks import (
    ChainVariance as ChainVariance,
    ConvexTaskCovariance as ConvexTaskCovariance,
    JointEstimate as JointEstimate,
    KernelFamily as KernelFamily,
    MeanSquare as MeanSquare,
    NeuralNetwork as NeuralNetwork,
    PolynomialFamily as PolynomialFamily,
    Stochastic as Stochastic,
    TaskREML as TaskREML,
    TrainedVectorValued as TrainedVectorValued,
    VectorValued as VectorValued,
    joint_expectation as joint_expectation,
)
from .trees import (
    ConvergenceWarning as ConvergenceWarning,
    attach_scores as attach_scores,
    check_tree as check_tree,
    from_arrays as from_arrays,
    from_blackjax as from_blackjax,
    from_cmdstan as from_cmdstan,
    from_dynesty as from_dynesty,
    from_numpyro as from_numpyro,
    load_tree as load_tree,
    resample as resample,
    save_tree as save_tree,
    score_diagnostics as score_diagnostics,
)

__version__: str
