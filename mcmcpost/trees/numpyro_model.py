"""A NumPyro program as a density on the unconstrained space: its latent sites, transformation and
log density."""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.core.arguments import check_function
from mcmcpost.core.devices import map_rows
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.precision import (
    NOT_TRACEABLE,
    in_either_precision,
    not_traceable,
    unit_of_text,
)
from mcmcpost.trees.convention import (
    SAMPLE_DIMS,
    check_names,
    element_names,
    posterior_sites,
    refuse_outside,
    stored_draws,
)

if TYPE_CHECKING:
    import xarray


class ProbedModel(NamedTuple):
    """A NumPyro program with its arguments.

    where : the public function that error messages name.
    model : the program; `prng_key` and subsampling get a fixed key.
    args, kwargs : its arguments.
    sites : constrained shapes of the continuous latent sites, in the order of the program.
    shapes : unconstrained shapes of the same.
    discrete : shapes and dtypes of the discrete latent sites of which there are draws.
    """

    where: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sites: dict[str, tuple[int, ...]]
    shapes: dict[str, tuple[int, ...]]
    discrete: dict[str, jax.ShapeDtypeStruct]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            name for site, shape in self.shapes.items() for name in element_names(site, shape)
        )

    def logdensity(self, draw: Array, discrete: dict[str, Array] | None = None) -> Array:
        """Return the log density of one unconstrained draw (d,), log-Jacobian included, at values
        of discrete sites.

        E[g′(x) + g(x) ∂ₓ log p(x, k) | k] = 0 for every k, and so in the joint posterior of x and k
        too.
        """
        from numpyro.infer.util import potential_energy

        return -potential_energy(self._given(discrete), self.args, self.kwargs, self.unravel(draw))

    def _given(self, discrete: dict[str, Array] | None) -> Callable[..., Any]:
        """Return the program with its discrete sites at these values."""
        from numpyro import handlers

        return handlers.condition(self.model, data=discrete) if discrete else self.model

    def unravel(self, draw: Array) -> dict[str, Array]:
        """Return the unconstrained sites of one flat draw (d,)."""
        # In the order of the program: `ravel_pytree` sorts a dict by its keys.
        sizes = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = jnp.split(draw, sizes[:-1])
        return {
            site: segment.reshape(shape)
            for (site, shape), segment in zip(self.shapes.items(), parts, strict=True)
        }

    def sites_of(self, draw: Array) -> dict[str, Array]:
        """Return the constrained and deterministic sites of one unconstrained draw (d,)."""
        from numpyro.infer.util import constrain_fn

        # Deterministic sites come along: they are what people ask expectations of.
        return constrain_fn(
            self.model, self.args, self.kwargs, self.unravel(draw), return_deterministic=True
        )

    def constrain(self, draws: Float[np.ndarray, "*lead d"]) -> dict[str, np.ndarray]:
        """Return the constrained and deterministic sites {site: (*lead, ...)} of unconstrained
        draws."""
        flat = np.asarray(draws, np.float64).reshape(-1, draws.shape[-1])
        values = map_rows(self.sites_of, flat)
        order = [*self.sites, *(name for name in values if name not in self.sites)]
        return {
            name: values[name].reshape(*draws.shape[:-1], *values[name].shape[1:]) for name in order
        }

    def observed_nan(self) -> list[str]:
        """Return the observed sites of which some value is NaN."""
        from numpyro import handlers

        sites = handlers.trace(self.model).get_trace(*self.args, **self.kwargs)
        observed = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and site["is_observed"]
        }
        return [
            name
            for name, site in observed.items()
            if np.isnan(np.asarray(site["value"], np.float64)).any()
        ]

    def draws_of(self, tree: "xarray.DataTree") -> Float[np.ndarray, "c n d"]:
        """Return the unconstrained draws of a trace: stored ones with the model's labels, else its
        sites."""
        stored = stored_draws(self.where, tree)
        # Without equal labels stored draws may be of another order or another parameterisation.
        if stored is not None and stored[1] == self.names:
            return stored[0]
        return self.unconstrain(posterior_sites(self.where, tree))[0]

    def unconstrain(
        self, samples: dict[str, np.ndarray]
    ) -> tuple[Float[np.ndarray, "c n d"], tuple[str, ...]]:
        """Return the unconstrained draws and their labels from constrained sites (c, n, ...)."""
        from numpyro.infer.util import unconstrain_fn

        # With both lists: within the mapped function it would be a KeyError of NumPyro's.
        missing = [site for site in self.sites if site not in samples]
        if missing:
            raise InputError(
                self.where,
                f"the latent sites of the model, {', '.join(self.sites)}, among the draws",
                f"{', '.join(samples)} without {', '.join(missing)}",
                "Keep every latent site when sampling, and pass the model that was sampled.",
            )
        for site, shape in self.sites.items():
            if samples[site].dtype.kind not in "fiub":
                got, cure = f"dtype {samples[site].dtype}", "Pass the trace of this model."
                raise InputTypeError(self.where, f"site `{site}` to be a real number", got, cure)
            if samples[site].shape[2:] != shape:
                raise InputError(
                    self.where,
                    f"site `{site}` of shape (chain, draw{''.join(f', {size}' for size in shape)})",
                    samples[site].shape,
                    "Pass the model and the arguments that were sampled.",
                )
        first = samples[next(iter(self.sites))]
        flat = {
            site: samples[site].astype(np.float64).reshape(-1, *shape)
            for site, shape in self.sites.items()
        }
        discrete = {
            site: values.reshape(-1, *values.shape[2:])
            for site, values in self.discrete_of(samples).items()
        }

        def one(row: tuple[dict[str, Array], dict[str, Array]]) -> Array:
            # A bound may depend on a discrete site: it takes its value from the same draw.
            # Deterministic sites are passed through: only the latent ones are taken.
            free = unconstrain_fn(self._given(row[1]), self.args, self.kwargs, row[0])
            return jnp.concatenate([jnp.ravel(free[site]) for site in self.sites])

        draws = map_rows(one, (flat, discrete)).astype(np.float64).reshape(*first.shape[:2], -1)
        self._check_support(samples, draws)
        self._check_round_trip(flat, discrete, draws.reshape(len(draws) * draws.shape[1], -1))
        return draws, self.names

    def discrete_of(self, samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the draws (c, n, ...) of the discrete sites, in their dtypes."""
        draws = {}
        for site, one in self.discrete.items():
            values, cure = samples[site], "Pass the trace of this model."
            if values.shape[2:] != one.shape:
                expected = (
                    f"site `{site}` of shape (chain, "
                    f"draw{''.join(f', {size}' for size in one.shape)})"
                )
                raise InputError(self.where, expected, values.shape, cure)
            if values.dtype.kind not in "iub" and not (
                values.dtype.kind == "f" and (values == np.rint(values)).all()
            ):
                got = f"{values.dtype}s that are not"
                raise InputError(
                    self.where, f"whole numbers as draws of the discrete site `{site}`", got, cure
                )
            draws[site] = values.astype(one.dtype)
        return draws

    def _check_support(
        self, samples: dict[str, np.ndarray], draws: Float[np.ndarray, "c n d"]
    ) -> None:
        """Refuse finite values that have no unconstrained counterpart; NaN among them is left to
        the trace."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = zip(self.shapes, np.split(~np.isfinite(draws), ends[:-1], axis=-1), strict=True)
        outside = {site: bad.any(axis=-1) for site, bad in parts if bad.any()}
        # NaN draws are reported as such by the trace, with what to do about failed solves.
        if not outside or not all(np.isfinite(samples[site]).all() for site in self.sites):
            return
        refuse_outside(self.where, samples, outside)

    def _check_round_trip(
        self,
        sites: dict[str, np.ndarray],
        discrete: dict[str, np.ndarray],
        draws: Float[np.ndarray, "m d"],
    ) -> None:
        """Refuse values with fewer unconstrained ones that these do not give back: entries of a
        simplex that does not sum to one would be taken for those of another."""
        from numpyro.infer.util import constrain_fn

        constrained = [name for name in self.sites if self.shapes[name] != self.sites[name]]
        if not constrained:
            return

        def back(row: tuple[Array, dict[str, Array]]) -> dict[str, Array]:
            model = self._given(row[1])
            values = constrain_fn(model, self.args, self.kwargs, self.unravel(row[0]))
            return {name: values[name] for name in constrained}

        for name, values in map_rows(back, (draws, discrete)).items():
            stored = sites[name]
            gap = np.abs(values - stored).reshape(len(draws), -1).max(axis=1)
            # A file of few digits has a unit in the last of them for each entry.
            unit = math.prod(self.sites[name]) * unit_of_text(stored)
            off = gap > max(SAME_VALUE * float(np.abs(stored).max()), unit)
            if off.any():
                raise InputError(
                    self.where,
                    f"values of `{name}` that the model can give, as a simplex that sums to one",
                    f"{off.sum()} of {off.size} draws that are off by up to {gap[off].max():.2g}",
                    "Pass the draws as they were sampled, and the model that was sampled.",
                )


SAME_VALUE = 1e-5
"""By how much a value with a constraint may differ from the one that its unconstrained values give,
relative to the largest: in float32 they do by less."""


def _check_fits(where: str, name: str, site: dict[str, Any]) -> None:
    """Refuse observed values that are no arrays, or of a shape that their distribution cannot
    have."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of values outside the support, which sampling tells
            # Called for its error: from within a run it names neither the site nor what does not
            # fit.
            site["fn"].log_prob(site["value"])
    except (TypeError, ValueError) as error:
        value, got, cure = site["value"], "", "Match their shapes."
        if not isinstance(value, jax.Array | np.ndarray | np.number | int | float):
            got, cure = f"a {type(value).__name__} of ", "Pass an array: jax.numpy.asarray(values)."
        got += (
            f"shape {np.shape(value)} for a {type(site['fn']).__name__} of shape "
            f"{site['fn'].shape()}"
        )
        raise InputError(where, f"observed values that fit the site `{name}`", got, cure) from error


def dotted(name: str) -> str:
    """Return the name of a site in a tree, which takes "/" for a path: NumPyro's `scope` and
    modules put it there."""
    return name.replace("/", ".")


def with_dotted_sites(where: str, model: Callable[..., Any]) -> Callable[..., Any]:
    """Return the program with "." for "/" in the names of its sites and plates.

    Raises
    ------
    ValueError : two sites have one name then.
    """
    from numpyro.primitives import Messenger

    given: dict[str, str] = {}

    # A handler, because names are given while the program runs: `scope` adds its prefix within.
    class Dotted(Messenger):  # type: ignore[misc]
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg.get("name"):
                new = dotted(msg["name"])
                if given.setdefault(new, msg["name"]) != msg["name"]:
                    got, cure = f"{given[new]} and {msg['name']}", "Rename one of them."
                    raise InputError(where, 'names of sites that differ when "/" is "."', got, cure)
                msg["name"] = new
            if msg.get("cond_indep_stack"):  # of plates, which are dims
                msg["cond_indep_stack"] = [
                    f._replace(name=dotted(f.name)) for f in msg["cond_indep_stack"]
                ]

    return Dotted(model)


def _views(value: Any) -> Any:
    """Return an argument with a view in the place of each NumPy array in it, in lists, tuples and
    dicts."""
    if type(value) is np.ndarray:
        return value.view()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_views, value))
    if type(value) in (list, tuple):
        return type(value)(map(_views, value))
    return {key: _views(item) for key, item in value.items()} if type(value) is dict else value


def _seeded(
    where: str, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Return the program with a fixed key, on views of its arguments; refuse others than it
    takes."""
    from numpyro import handlers
    from numpyro.distributions import Distribution

    check_function(where, "model", model, None, "Pass a NumPyro program.")
    if isinstance(model, type | Distribution):  # they can be called, and run no program
        got = "a class" if isinstance(model, type) else f"the distribution {type(model).__name__}"
        cure = 'Such as def model(y): numpyro.sample("mu", dist.Normal(0, 1)) and so on.'
        raise InputTypeError(where, "`model` to be a NumPyro program, a function", got, cure)
    try:
        # A missing argument would otherwise be a TypeError from within the model, like those of its
        # own faults.
        inspect.signature(model).bind(*args, **kwargs)
    except TypeError as error:
        got = f"{len(args)} and {', '.join(kwargs) or 'no keywords'}: {error}"
        raise InputError(
            where, f"the arguments of `model{inspect.signature(model)}`", got, "Pass its data."
        ) from error

    # JAX remembers an array object in the precision in which it first met it; a view is a new
    # object with the same memory. Anew in each run of the program: data in a closure may be known
    # in float32, and arguments of an attempt in float64 could not be mixed with them ever after.
    @functools.wraps(model)
    def on_views(*args: Any, **kwargs: Any) -> Any:
        return model(*_views(args), **_views(kwargs))

    # A fixed key: subsampling plates and `prng_key` must be the same at every evaluation of the
    # density.
    return handlers.seed(with_dotted_sites(where, on_views), rng_seed=0)


def _trace_abstractly(where: str, model: Callable[..., Any], run: Callable[[], Array]) -> None:
    """Trace the run of a program by shapes alone: no likelihood is evaluated, which may be an ODE
    solve."""
    try:
        in_either_precision(lambda: jax.eval_shape(run))
    except NOT_TRACEABLE as error:
        raise not_traceable(where, "model", model, error) from error


def variables_of_program(
    where: str, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Return the names of the variables that a trace of a NumPyro program will have, by shapes
    alone: no draw is made, and no likelihood evaluated.

    Discrete sites that the sampler will sum out are among them.
    """
    from numpyro import handlers
    from numpyro.infer import init_to_sample

    seeded = _seeded(where, model, args, kwargs)
    names: list[str] = []

    def run() -> Array:
        names.clear()  # of an attempt in the other precision
        started = handlers.substitute(seeded, substitute_fn=init_to_sample)
        trace = handlers.trace(started).get_trace(*args, **kwargs)
        names.extend(
            name
            for name, site in trace.items()
            if site["type"] == "deterministic"
            or (site["type"] == "sample" and not site["is_observed"])
        )
        return jnp.zeros(())

    _trace_abstractly(where, model, run)
    return names


def probe_model(
    where: str,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    only: set[str] | None = None,
    dims: tuple[str, ...] = SAMPLE_DIMS,
    drawn: Collection[str] | None = None,
) -> ProbedModel:
    """Return `model` with its latent sites, found by an abstract run.

    It runs on views of its arguments: to JAX new arrays, in whatever precision it met the others
    (see `in_either_precision`).

    Parameters
    ----------
    where : the public function that error messages name.
    model, args, kwargs : a NumPyro program and its arguments.
    only : sites that were sampled by their gradient; others, as enumerated ones, are left out. None
        takes all.
    dims : of every variable of the trace: no site may have their names, or one that cannot be
        saved.
    drawn : the variables of a trace. Discrete sites are taken if they are among them, and not
        marked for enumeration; others are refused, and None refuses all.
    """
    from numpyro import handlers
    from numpyro.distributions import Delta, biject_to
    from numpyro.infer import init_to_sample

    seeded = _seeded(where, model, args, kwargs)
    sites: dict[str, tuple[int, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    discrete: dict[str, jax.ShapeDtypeStruct] = {}
    refused: list[str] = []
    fixed: list[str] = []
    kept: dict[str, tuple[int, ...]] = {}
    observed: list[str] = []

    def run() -> Array:
        for collected in (sites, shapes, discrete, refused, fixed, kept, observed):
            collected.clear()  # of an attempt in the other precision
        # Improper priors cannot be sampled; init_to_sample can start them.
        trace = handlers.trace(handlers.substitute(seeded, substitute_fn=init_to_sample)).get_trace(
            *args, **kwargs
        )
        for name, site in trace.items():
            if site["type"] == "sample" and site["is_observed"]:
                observed.append(name)
                _check_fits(where, name, site)
            elif site["type"] in ("sample", "deterministic"):
                kept[name] = jnp.shape(site["value"])
            if (
                site["type"] != "sample"
                or site["is_observed"]
                or (only is not None and name not in only)
            ):
                continue
            if isinstance(site["fn"], Delta):
                fixed.append(name)
                continue
            if site["fn"].support.is_discrete:
                if name in (drawn or ()) and site["infer"].get("enumerate") != "parallel":
                    discrete[name] = jax.ShapeDtypeStruct(
                        jnp.shape(site["value"]), jnp.result_type(site["value"])
                    )
                else:
                    refused.append(name)
                continue
            sites[name] = tuple(site["value"].shape)
            shapes[name] = tuple(biject_to(site["fn"].support).inverse_shape(sites[name]))
        return jnp.zeros(())

    _trace_abstractly(where, model, run)
    # Names are refused here, before a run whose draws could not be saved.
    check_names(where, kept, dims)
    check_names(where, dict.fromkeys(observed, ()), dims)
    if refused:
        expected, got = "continuous latent sites", f"discrete {', '.join(refused)}"
        cure = "Only continuous parameters have scores: sum the discrete ones out of the model."
        if drawn is not None:
            expected += ", or draws of the discrete ones"
            got += " without draws, or marked for enumeration"
            cure = (
                "Keep the draws of DiscreteHMCGibbs or MixedHMC; where the sampler sums these "
                "sites out, keep its"
                ' scores with extra_fields=("z_grad",).'
            )
        raise InputError(where, expected, got, cure)
    if fixed:
        cure = "Write numpyro.deterministic for what has one value."
        raise InputError(
            where, "latent sites that vary", f"Delta distributions of {', '.join(fixed)}", cure
        )
    if not sites:
        got = f"discrete {', '.join(discrete)} alone" if discrete else "none"
        raise InputError(
            where, "a model with continuous latent sites", got, "Pass the model that was sampled."
        )
    return ProbedModel(where, seeded, args, kwargs, sites, shapes, discrete)
