"""Scores for a stored trace: from a file and its model, checked against what the sampler
recorded."""

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from bridgestan_case import StanModel
from cli_cases import refused
from interop_cases import DATA, Y, model
from numpyro.infer import HMC, MCMC

import mcmcpost as mp
from mcmcpost.trees import read_trace

pytestmark = pytest.mark.usefixtures("rank_promotion")

MODEL = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("b_scale", dist.HalfNormal(1.0))
    numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)

def data(shift=0.0):
    return {"y": jnp.array([0.1, 0.5, -0.3, 1.2]) + shift}

def quantities(draw):
    return {"precision": draw["b_scale"] ** -2}
"""


@pytest.fixture(scope="module")
def sampled():
    """A run with the scores of the sampler, and ArviZ's tree of it, which has none."""
    import arviz_base

    mcmc = MCMC(
        HMC(model, trajectory_length=2.0),
        num_warmup=300,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), Y, extra_fields=("z_grad", "potential_energy"))
    bare = arviz_base.from_numpyro(mcmc)
    bare["sample_stats"] = bare["sample_stats"].to_dataset().drop_vars("z_grad", errors="ignore")
    return mp.from_numpyro(mcmc), bare


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_saved_tree_and_its_model_give_the_scores_of_the_sampler(sampled, tmp_path, suffix):
    kept, bare = sampled
    stored = mp.load_tree(mp.save_tree(bare, tmp_path / f"bare{suffix}"))
    kept, computed = read_trace(kept), read_trace(mp.attach_scores(stored, model, Y))
    assert computed.names == kept.names == ("mu", "b_scale", "weights[0]", "weights[1]")
    np.testing.assert_allclose(computed.draws, kept.draws, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(computed.scores, kept.scores, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_simplex_that_does_not_sum_to_one_is_refused(sampled):
    _, bare = sampled
    posterior = bare["posterior"].to_dataset()
    for factor, words in (
        (np.array([1.0, 1.0, 0.9]), r"weights.* of 4000 draws that are off by up to 0\.0"),
        (1 + 1e-3, r" of 4000 draws that are off by up to 0\.0"),
    ):
        wrong = xarray.DataTree.from_dict(
            {"posterior": posterior.assign(weights=posterior["weights"] * factor)}
        )
        with pytest.raises(mp.InputError, match=words):
            mp.attach_scores(wrong, model, Y)
    # Rounded draws do not sum to one either, and are those of the model.
    few = posterior.assign(weights=posterior["weights"].round(4).clip(min=1e-4))
    mp.attach_scores(xarray.DataTree.from_dict({"posterior": few}), model, Y)


@pytest.mark.slow
def test_other_data_than_was_sampled_are_refused(sampled):
    _, bare = sampled
    with pytest.raises(
        mp.ScoreError,
        match=r"recorded `sample_stats.lp` by a constant, got differences that vary by.*data",
    ):
        mp.attach_scores(bare, model, Y + 0.2)
    # the record tells what the gate cannot
    with pytest.warns(mp.ScoreWarning, match="too few or have not converged"):
        mp.attach_scores(bare, model, Y + 0.2, allow_bad_scores=True)


@pytest.mark.slow
def test_a_constant_between_the_densities_is_allowed_and_rounding_is_too(sampled):
    _, bare = sampled
    record = bare["sample_stats"]["lp"]
    for other in (record + 1e3, record.astype(np.float32)):
        tree = bare.copy()
        tree["sample_stats"] = bare["sample_stats"].to_dataset().assign(lp=other)
        mp.attach_scores(tree, model, Y)
    partly = xarray.where(record.draw % 7 == 3, -np.inf, record)
    tree["sample_stats"] = tree["sample_stats"].to_dataset().assign(lp=partly)
    mp.attach_scores(tree, model, Y)
    for other in (record * 0.9, partly * 0.9):
        tree["sample_stats"] = tree["sample_stats"].to_dataset().assign(lp=other)
        with pytest.raises(mp.ScoreError, match="by a constant"):
            mp.attach_scores(tree, model, Y)


def rounded(values, digits):
    return np.vectorize(lambda x: float(f"{x:.{digits}g}"))(values)


@pytest.mark.slow
def test_a_record_of_few_digits_or_of_the_other_sign_is_recognised_and_a_wrong_density_is_not(rng):
    """CmdStan writes six digits until 2.36 and eight since; PyMC with nuts_sampler="numpyro" writes
    −lp."""
    draws = rng.normal(size=(4, 250, 2))
    density = -0.5 * (draws**2).sum(-1)

    def attach(lp, scale=1.0):
        posterior = {name: (("chain", "draw"), draws[..., i]) for i, name in enumerate("ab")}
        groups = {
            "posterior": xarray.Dataset(posterior),
            "sample_stats": xarray.Dataset({"lp": (("chain", "draw"), lp)}),
        }
        tree = mp.attach_scores(
            xarray.DataTree.from_dict(groups), logdensity_fn=lambda x: -0.5 * scale * x @ x
        )
        np.testing.assert_allclose(read_trace(tree).scores, -draws)

    for lp in (rounded(density - 12_346, 6), rounded(density - 1.5e6, 8), density - 1.5e6):
        attach(lp)
        with pytest.warns(
            UserWarning, match=r"`sample_stats\.lp` is minus the log density, as PyMC with"
        ):
            attach(-lp)
        with pytest.raises(mp.ScoreError, match="by a constant"):
            attach(lp, scale=2.0)


@pytest.mark.slow
def test_a_log_density_is_compared_as_well(sampled):
    kept, _ = sampled
    with pytest.raises(mp.ScoreError, match=r"recorded `sample_stats.lp`"):
        mp.attach_scores(kept, logdensity_fn=lambda x: -0.5 * x @ x)


@pytest.mark.slow
def test_a_density_that_is_nowhere_finite_is_the_gates_business(sampled):
    _, bare = sampled
    with pytest.raises(
        mp.ScoreError, match=r"at 4000 of 4000 .* everywhere, as with NaN among the data\. Repair"
    ):
        mp.attach_scores(bare, model, jnp.asarray(Y) * jnp.nan)


@pytest.mark.slow
def test_scores_under_another_name_are_pointed_at(sampled):
    kept, _ = sampled
    tree = kept.copy()
    tree["sample_stats"] = kept["sample_stats"].to_dataset().rename(gradient="grad_logp")
    with pytest.raises(
        ValueError, match=r"`sample_stats.gradient`.*rename\(\{'grad_logp': 'gradient'\}\)"
    ) as info:
        mp.summary(tree)
    cure = str(info.value).partition("rename it: ")[2].partition(". Else")[0]
    exec(cure, {"tree": tree})
    np.testing.assert_array_equal(read_trace(tree).scores, read_trace(kept).scores)


@pytest.mark.slow
def test_scores_in_another_order_of_labels_are_refused(sampled):
    kept, _ = sampled
    stats = kept["sample_stats"].to_dataset()
    turned = stats["gradient"].isel(unconstrained_parameter=slice(None, None, -1))
    tree = kept.copy()
    tree["sample_stats"] = stats.drop_vars("gradient").assign(
        gradient=turned.rename(unconstrained_parameter="other")
    )
    with pytest.raises(
        ValueError, match=r"one order.*unconstrained_draw and gradient, got mu and weights\[1\]"
    ):
        read_trace(tree)
    # Along one dim xarray aligns by label, so there no order can be wrong.
    tree["sample_stats"] = stats.assign(gradient=turned)
    np.testing.assert_array_equal(read_trace(tree).scores, read_trace(kept).scores)


def test_traces_in_different_orders_are_not_taken_together(rng):
    draws = rng.normal(size=(2, 100, 2))
    one = mp.from_arrays(draws, -draws, names=("a", "b"))
    other = mp.from_arrays(draws, -draws, names=("b", "a"))
    with pytest.raises(ValueError, match="task 'one' and task 'other', got a and b at position 0"):
        mp.joint_expectation({"one": (one, None), "other": (other, None)})


@pytest.mark.slow
def test_a_file_of_arviz_0_becomes_a_scored_trace():
    """The file is ArviZ 0.23.4's own, written through netCDF4: see tests/data/make_arviz_0.py."""
    tree = mp.load_tree(DATA / "arviz_0_23.nc")
    assert tree["posterior"].attrs["arviz_version"] == "0.23.4"
    scored = mp.attach_scores(tree, model, Y)
    assert scored["sample_stats"].attrs["score_check"] == "pass"
    table = mp.summary(scored, method="zv2")
    assert list(table.index) == ["b_scale", "mu", "weights[a]", "weights[b]", "weights[c]"]
    assert (table["gain"] > 1).any()


@pytest.fixture
def files(sampled, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return mp.save_tree(sampled[1], tmp_path / "bare.nc"), tmp_path / "model.py"


@pytest.mark.slow
def test_the_command_line_takes_a_trace_and_its_model(run, files):
    trace, model_file = files
    assert refused(run("reduce", trace), "attach_scores", "--model")
    done = run("reduce", trace, "--model", model_file, "--method", "zv2")
    assert done.code == 0
    assert {"mu", "weights[2]", "precision"} <= {
        row.split()[0] for row in done.out.splitlines()[1:]
    }
    done = run("report", trace, "--model", model_file, "--method", "zv2", "-o", "report.html")
    assert done.code == 0
    assert done.out.endswith("scores pass\n")


@pytest.mark.slow
def test_bad_models_on_the_command_line_are_one_line(run, files):
    trace, model_file = files
    assert refused(
        run("reduce", trace, "--model", model_file, "--option", "shift=1"), "by a constant"
    )
    assert refused(run("reduce", trace, "--model", "none.py"), "none.py")
    assert refused(run("reduce", trace, "--option", "shift=1"), "Add --model")
    assert refused(run("reduce", model_file, "--model", model_file), "Leave --model out")


@pytest.fixture
def stan_tree(rng):
    """Exact draws of the stand-in for a BridgeStan model, as ArviZ has them: arrays counted from
    zero."""
    lead = ("chain", "draw")
    variables = {
        "z": ((*lead, "row", "column"), rng.normal(size=(4, 200, 2, 2))),
        "sigma": (lead, np.sqrt(rng.chisquare(2.0, size=(4, 200)))),
    }
    return xarray.DataTree.from_dict({"posterior": xarray.Dataset(variables)})


def test_a_bridgestan_model_is_read_by_its_names(stan_tree):
    """The real package wants C++ sources from GitHub: tests/trees/test_interop_stan.py runs it
    where they are."""
    tree = mp.attach_scores(stan_tree, StanModel())
    trace = read_trace(tree)
    z = stan_tree["posterior"]["z"].values
    assert trace.names == ("sigma", "z.1.1", "z.2.1", "z.1.2", "z.2.2")
    np.testing.assert_array_equal(trace.draws[..., 3], z[..., 0, 1])
    np.testing.assert_array_equal(trace.scores[..., 3], -z[..., 0, 1])
    assert tree["sample_stats"].attrs["score_check"] == "pass"


@pytest.mark.slow
def test_a_bridgestan_model_has_its_evidence_with_all_constants(stan_tree, key):
    found = mp.bridge_evidence(stan_tree, StanModel(), key=key)
    assert abs(found.value) < 4.5 * found.mcse < 0.2
    with pytest.raises(ValueError, match="bridge_evidence: expected a model of bridgestan alone"):
        mp.bridge_evidence(stan_tree, StanModel(), 1.0, key=key)


def test_stan_models_that_are_of_another_trace(stan_tree):
    posterior = stan_tree["posterior"].to_dataset()
    for change, words in (
        (posterior.drop_vars("sigma"), "`sigma` among the draws, got z"),
        (posterior.isel(column=slice(1)), r"`z` with an element z.1.2, got \(4, 200, 2, 1\)"),
        (posterior.isel(column=0), "`z` with an element z.1.1"),
    ):
        with pytest.raises(ValueError, match=words):
            mp.attach_scores(xarray.DataTree.from_dict({"posterior": change}), StanModel())
    with pytest.raises(ValueError, match="a model of bridgestan alone"):
        mp.attach_scores(stan_tree, StanModel(), y=1.0)
    thrown = posterior.assign(sigma=posterior["sigma"] + 10.0)
    with pytest.raises(mp.ScoreError, match="not finite"):
        mp.attach_scores(xarray.DataTree.from_dict({"posterior": thrown}), StanModel())


def test_a_density_of_variables_that_are_no_numbers(rng):
    posterior = {"a": rng.normal(size=(4, 50)), "label": np.full((4, 50), "q")}
    tree = arviz_base.from_dict({"posterior": posterior})
    with pytest.raises(mp.InputTypeError, match="`label` to be a real number"):
        mp.attach_scores(tree, logdensity_fn=lambda x: -0.5 * x @ x)


def test_an_error_of_the_density_comes_without_a_warning_of_jax(rng):
    x = rng.normal(size=(2, 40, 1))
    # Warnings are errors here, and would come first.
    with pytest.raises(TypeError, match="string indexing"):
        mp.attach_scores(mp.from_arrays(x, -x), logdensity_fn=lambda draw: draw["a"])


def test_groups_of_other_draws_are_refused_before_the_work(rng):
    x = rng.normal(size=(2, 40, 1))
    tree = mp.from_arrays(x, -x, values=x)
    tree["posterior"] = tree["posterior"].to_dataset().isel(draw=slice(None, None, 10))
    with pytest.raises(ValueError, match="the same draws in posterior"):
        mp.attach_scores(tree, logdensity_fn=lambda _: 1 / 0)


class Simplex:
    """A stand-in for ``bridgestan.StanModel`` that refuses, as Stan does, what misses its
    constraint by 1e-8."""

    __module__ = "bridgestan.model"

    def param_names(self):
        return ["w.1", "w.2", "w.3"]

    def param_unc_names(self):
        return ["w.1", "w.2"]

    def param_unconstrain(self, theta):
        if abs(theta.sum() - 1) > 1e-8 or theta.min() <= 0:
            raise RuntimeError("Exception: simplex_free: Simplex variable is not a valid simplex.")
        return np.log(theta[:2] / theta[2])

    def log_density(self, free, *, propto=True, jacobian=True):  # noqa: ARG002  (the real signature)
        return 2 * free.sum() - 6 * np.log1p(np.exp(free).sum())

    def log_density_gradient(self, free, *, propto=True, jacobian=True):  # noqa: ARG002
        weights = np.exp(free) / (1 + np.exp(free).sum())
        return self.log_density(free), 2 - 6 * weights


def test_a_simplex_of_six_digits_is_made_one_again_and_what_cannot_be_is_named(rng):
    weights = rounded(rng.dirichlet([2.0, 2.0, 2.0], size=(2, 100)), 6)
    assert np.abs(weights.sum(-1) - 1).max() > 1e-7
    tree = xarray.DataTree.from_dict(
        {"posterior": xarray.Dataset({"w": (("chain", "draw", "k"), weights)})}
    )
    scored = mp.attach_scores(tree, Simplex())
    exact = weights / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(read_trace(scored).scores, 2 - 6 * exact[..., :2], rtol=1e-10)
    weights[1, 3] = 0.0, 0.5, 0.5
    words = r"got chain 1, draw 3: Exception: simplex_free.*sig_figs=18"
    with pytest.raises(mp.InputError, match=words):
        mp.attach_scores(tree, Simplex())


class Correlation:
    """A stand-in for ``bridgestan.StanModel`` with a correlation matrix, or its factor: atanh of
    one is infinite."""

    __module__ = "bridgestan.model"

    def __init__(self, *, refuses):
        self.refuses = refuses

    def param_names(self):
        return ["R.1.1", "R.2.1", "R.1.2", "R.2.2"]

    def param_unc_names(self):
        return ["R.1"]

    def param_unconstrain(self, theta):
        if self.refuses and abs(theta[1]) >= 1:
            raise RuntimeError("Exception: corr_matrix_free: y is not positive definite.")
        with np.errstate(divide="ignore"):
            return np.arctanh(theta[1:2])


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("factor", [True, False])
def test_a_correlation_of_exactly_one_is_named_with_its_draw(rng, refuses, factor):
    r = rng.uniform(-0.9, 0.9, size=(2, 50))
    r[1, 7] = -1.0
    zero, one = np.zeros_like(r), np.ones_like(r)
    rows = ((one, zero), (r, np.sqrt(1 - r**2))) if factor else ((one, r), (r, one))
    matrix = np.moveaxis(np.array(rows), (0, 1), (2, 3))
    tree = xarray.DataTree.from_dict(
        {"posterior": xarray.Dataset({"R": (("chain", "draw", "i", "j"), matrix)})}
    )
    words = (
        r"got R with a correlation of exactly one or minus one at chain 1, draw 7: .*sig_figs=18"
    )
    with pytest.raises(mp.InputError, match=words):
        mp.attach_scores(tree, Correlation(refuses=refuses))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (int, "a NumPyro program, a function, got a class"),
        (dist.Normal(0.0, 1.0), "a NumPyro program, a function, got the distribution Normal"),
        (xarray.DataTree(), "`model` to be a function, got a DataTree"),
    ],
)
def test_what_can_be_called_and_is_no_program(rng, program, words):
    x = rng.normal(size=(2, 40, 1))
    with pytest.raises(mp.InputTypeError, match=words) as told:
        mp.attach_scores(mp.from_arrays(x, -x, names=("a",)), program)
    assert "\n" not in str(told.value)


def test_a_site_of_text_is_told():
    tree = arviz_base.from_dict({"posterior": {"mu": np.full((2, 20), "high")}})
    with pytest.raises(mp.InputTypeError, match="site `mu` to be a real number, got dtype <U4"):
        mp.attach_scores(tree, lambda: numpyro.sample("mu", dist.Normal(0.0, 1.0)))


@pytest.mark.parametrize(
    "ask",
    [
        mp.attach_scores,
        lambda tree, model: mp.bridge_evidence(tree, model, key=jax.random.key(0)),
        lambda tree, model: mp.laplace_evidence(tree, model, key=jax.random.key(0)),
        lambda _, model: mp.sample_until(model, mcse=0.1, key=jax.random.key(0)),
        lambda _, model: mp.sample_power_posteriors(
            model, temperatures=mp.power_ladder(3), key=jax.random.key(0)
        ),
    ],
)
@pytest.mark.parametrize("branch", [lambda mu: mu if mu > 1 else -mu, lambda mu: np.exp(mu)])
def test_a_model_that_cannot_be_traced_is_told_with_its_line(rng, ask, branch):
    def untraceable():
        numpyro.factor("f", branch(numpyro.sample("mu", dist.Normal(0.0, 1.0))))

    line = branch.__code__.co_firstlineno
    tree = xarray.DataTree.from_dict(
        {"posterior": xarray.Dataset({"mu": (("chain", "draw"), rng.normal(size=(2, 50)))})}
    )
    words = (
        f"^[a-z_]+: expected `model` in operations of jax.numpy, got Tracer.*Error in line {line} "
        r"of .*test_attach_scores.py. Write jnp.exp for np.exp, and jnp.where for if\.$"
    )
    with pytest.raises(mp.InputError, match=words):
        ask(tree, untraceable)
