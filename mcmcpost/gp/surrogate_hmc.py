"""Surrogate Hamiltonian Monte Carlo as a kernel of NumPyro."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from mcmcpost.core.arguments import check_flags, check_function, check_number
from mcmcpost.core.errors import InputError, fault, warn
from mcmcpost.gp import surrogate_moves
from mcmcpost.gp.surrogate import HELD_OUT, AbstractSurrogate, SubspaceSurrogate, empty_history


class Bound(NamedTuple):
    """NumPyro's NUTS and adaptation on flat draws, made by `init` for one length of warm-up."""

    nuts: Callable[..., Any]
    adapt: Callable[..., Any]
    num_warmup: int
    fits: bool


class SurrogateHMC:
    """Sample with few true gradients: a NumPyro kernel, ``MCMC(SurrogateHMC(model), num_warmup=...,
    num_samples=...)``.

    Warm-up is Hamiltonian Monte Carlo with true gradients; its step size and mass matrix are
    adapted as NumPyro's NUTS does, on the mean acceptance probability along the trajectory, and its
    latest trajectories are kept. At its end a surrogate energy is fitted to their gradients and
    everything is frozen. Then trajectories follow the surrogate's gradient and are accepted with
    the true energy, which leaves the target invariant whatever the surrogate is. Some transitions,
    chosen at random, use true gradients, for tails that the surrogate does not know. A surrogate
    whose gradient is wrong on held-out trajectories is declined: sampling continues as NUTS with
    the adapted settings, `surrogate_used` is false, and a warning is logged. Without warm-up it is
    NUTS with the initial settings, and warns.

    Fields collected besides the draws: `diverging`, `accept_prob`, `num_true_gradients`,
    `num_true_energies`, `num_surrogate_gradients`, `num_warmup_gradients`, `num_warmup_energies`,
    `surrogate_used` and `gradient_error`; see `SurrogateState`. The first three counts start at the
    first draw, whose own cost they include; the last value of a chain is what its sampling cost,
    and `num_warmup_gradients`, the same at every draw, is what its warm-up cost. There is no
    `z_grad`: ``mcmcpost.from_numpyro`` computes true scores after sampling.

    Vectorised chains share one surrogate, fitted to the warm-up of all, and the choice of which
    transitions use true gradients. ``chain_method=jax.vmap`` is correct, but computes every kind of
    transition each time: use "vectorized". Run in 64 bits. In several processes of
    ``jax.distributed`` each runs all chains.

    Parameters
    ----------
    model : a NumPyro program, or None with
    potential_fn : minus the log density of unconstrained parameters, any pytree; then `init_params`
        are needed.
    surrogate : `SubspaceSurrogate` by default.
    num_steps : largest number of leapfrog steps of a trajectory with true gradients. The number is
        uniform from 1 to this, which halves the cost and lets no length resonate. Surrogate
        trajectories are as long as the longest.
    refinement : number of surrogate steps in place of one true step, each shorter by this factor.
        They cost no true gradient.
    true_gradient_probability : probability of a transition with true gradients after warm-up.
    delayed_acceptance : surrogate moves per true energy, each accepted with the surrogate's own
        energy. With many, chains can get stuck in tails where the surrogate's energy is too high;
        look at the tail effective sample size.
    max_gradient_error : largest relative error on held-out trajectories for which the surrogate is
        used. In 20-D logistic regression 0.16 gives 3.4 times the effective draws of NUTS per
        gradient, 0.22 still twice as many.
    history_size : number of points of warm-up that are kept per chain.
    step_size, target_accept_prob, dense_mass, init_strategy : as in NumPyro's HMC.

    Raises
    ------
    ValueError : settings that cannot run; both or neither of `model` and `potential_fn`.

    Source: de Roos, Gessner and Hennig, High-Dimensional Gaussian Process Inference with
    Derivatives (ICML 2021), section 5.3; Rasmussen, Gaussian Processes to Speed up Hybrid Monte
    Carlo (2003); docs/mathematics.md section 4.
    """

    sample_field = "z"
    is_ensemble_kernel = False
    default_fields = (
        "z",
        "diverging",
        "accept_prob",
        "num_true_gradients",
        "num_true_energies",
        "num_surrogate_gradients",
        "num_warmup_gradients",
        "num_warmup_energies",
        "surrogate_used",
        "gradient_error",
    )

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        *,
        potential_fn: Callable[[Any], Any] | None = None,
        surrogate: AbstractSurrogate | None = None,
        num_steps: int = 16,
        refinement: int = 2,
        true_gradient_probability: float = 0.1,
        delayed_acceptance: int = 1,
        max_gradient_error: float = 0.2,
        history_size: int = 4096,
        step_size: float = 1.0,
        target_accept_prob: float = 0.8,
        dense_mass: bool = False,
        init_strategy: Callable[..., Any] | None = None,
    ) -> None:
        from numpyro.infer import init_to_uniform
        from numpyro.infer.mcmc import MCMCKernel

        # a subclass to NumPyro, without which importing this module stays light
        MCMCKernel.register(type(self))
        where = "SurrogateHMC"
        if (model is None) == (potential_fn is None):
            got = "neither" if model is None else "both"
            raise InputError(where, "either `model` or `potential_fn`", got, "Pass one of them.")
        check_function(where, "model", model, None, "Pass a NumPyro program.", optional=True)
        check_function(
            where, "potential_fn", potential_fn, 1, "Its argument is the parameters.", optional=True
        )
        cure = "Such as numpyro.infer.init_to_median."
        check_function(where, "init_strategy", init_strategy, None, cure, optional=True)
        check_number(where, "step_size", step_size, "Use 1.")
        check_number(where, "target_accept_prob", target_accept_prob, "Use 0.8.", inside="(0, 1)")
        check_flags(where, dense_mass=dense_mass)
        self._model = model
        self._potential_fn = potential_fn
        self.settings = surrogate_moves.Settings(
            SubspaceSurrogate() if surrogate is None else surrogate,
            num_steps,
            refinement,
            true_gradient_probability,
            delayed_acceptance,
            max_gradient_error,
            history_size,
        )
        surrogate_moves.check_settings(self.settings)
        self._init_strategy = init_to_uniform if init_strategy is None else init_strategy
        self._adaptation = {
            "step_size": float(step_size),
            "target_accept_prob": target_accept_prob,
            "dense_mass": dense_mass,
        }
        self._potential_gen: Callable[..., Callable[[Any], Any]] | None = None
        self._postprocess: Callable[..., Callable[[Any], Any]] | None = None
        # NumPyro initialises a kernel whose `_sample_fn` is None
        self._sample_fn: Bound | None = None

    @property
    def model(self) -> Callable[..., Any] | None:
        """Return the NumPyro program, or None."""
        return self._model

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any = None,
        model_args: tuple[Any, ...] = (),
        model_kwargs: Any = None,
    ) -> surrogate_moves.SurrogateState:
        """Return the first state, of one chain, or of one per key."""
        from numpyro.infer.hmc import hmc
        from numpyro.infer.hmc_util import warmup_adapter

        kwargs = model_kwargs or {}
        single = _is_one_key(rng_key)
        # A single chain is a batch of one throughout, so that there is one program to write.
        keys = jax.vmap(jax.random.split)(rng_key[None] if single else rng_key)
        start = self._start(keys[0, 0] if single else keys[:, 0], init_params, model_args, kwargs)
        z = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], start) if single else start
        x = jax.vmap(lambda one: ravel_pytree(one)[0])(z)
        c, d = x.shape
        # NUTS on flat draws, whatever the pytree: the same layout as the surrogate's.
        init_nuts, sample_nuts = hmc(
            potential_fn_gen=lambda *a, **k: self._target(z, a, k).energy, algo="NUTS"
        )

        @jax.jit  # one program: eagerly NumPyro compiles dozens of small ones
        def initialise(x: Array, keys: Array) -> Any:
            def one(x: Array, key: Array) -> Any:
                given = {"model_args": model_args, "model_kwargs": kwargs, "rng_key": key}
                return init_nuts(x, num_warmup=num_warmup, **self._adaptation, **given)

            return jax.vmap(one)(x, keys)

        first = initialise(x, keys[:, 1])
        # The first third of warm-up may not be at the target yet: no room is kept for it.
        slots = max(
            1,
            min(
                self.settings.history_size // self.settings.num_steps, num_warmup - num_warmup // 3
            ),
        )
        fits = self._enough(num_warmup, c, slots, d)
        # `warmup_adapter` takes no step size: the start is in the first state.
        adapter = warmup_adapter(
            num_warmup, **{k: v for k, v in self._adaptation.items() if k != "step_size"}
        )
        self._sample_fn = Bound(sample_nuts, adapter[1], num_warmup, fits)
        history = empty_history(c, slots, self.settings.num_steps, d)
        # The first state has cost one energy and one gradient, counted as warm-up.
        zeros, ones = jnp.zeros(c, int), jnp.ones(c, int)
        # Zeros of the shapes of a fit: the state has one structure before and after warm-up, as
        # `scan` needs.
        shapes = jax.eval_shape(
            lambda h: surrogate_moves.fit_history(self.settings.surrogate, h).surrogate, history
        )
        state = surrogate_moves.SurrogateState(
            i=jnp.zeros((), int),
            z=z,
            potential_energy=first.potential_energy,
            true_gradient=first.z_grad,
            accept_prob=jnp.zeros(c),
            mean_accept_prob=jnp.zeros(c),
            diverging=jnp.zeros(c, bool),
            num_true_gradients=zeros,
            num_true_energies=zeros,
            num_surrogate_gradients=zeros,
            num_warmup_gradients=ones,
            num_warmup_energies=ones,
            surrogate_used=jnp.zeros(c, bool),
            gradient_error=jnp.full(c, jnp.nan),
            adapt_state=first.adapt_state,
            rng_key=first.rng_key,
            history=history,
            surrogate=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
        )
        return surrogate_moves.without_chains(state) if single else state

    def sample(
        self, state: surrogate_moves.SurrogateState, model_args: tuple[Any, ...], model_kwargs: Any
    ) -> surrogate_moves.SurrogateState:
        """Return the next state."""
        # NumPyro hands over one key for one chain and a batch for vectorised ones.
        single = _is_one_key(state.rng_key)
        batch = surrogate_moves.with_chains(state) if single else state
        # Built anew at each call, as data may differ between runs; under `jit` this costs nothing.
        new = surrogate_moves.advance(self._program(batch.z, model_args, model_kwargs or {}), batch)
        return surrogate_moves.without_chains(new) if single else new

    def postprocess_fn(
        self, model_args: tuple[Any, ...], model_kwargs: Any
    ) -> Callable[[Any], Any]:
        """Return the map from unconstrained to constrained sites."""
        if self._postprocess is None:
            return lambda z: z
        return self._postprocess(*model_args, **(model_kwargs or {}))

    def get_constrain_fn(
        self, model_args: tuple[Any, ...], model_kwargs: Any
    ) -> Callable[[Any], Any]:
        """Return the map from unconstrained to constrained sites."""
        return self.postprocess_fn(model_args, model_kwargs)

    def get_diagnostics_str(self, state: surrogate_moves.SurrogateState) -> str:
        """Return one line for the progress bar."""
        gradients = "surrogate" if state.surrogate_used else "true"
        size = state.adapt_state.step_size
        return (
            f"{gradients} gradients, steps of size {size:.2e}. acc. "
            f"prob={state.mean_accept_prob:.2f}"
        )

    def refresh(
        self, state: surrogate_moves.SurrogateState, model_args: tuple[Any, ...], model_kwargs: Any
    ) -> surrogate_moves.SurrogateState:
        """Recompute energy and gradient at ``state.z``, one of each per chain; the surrogate stays
        as it was."""
        assert self._sample_fn is not None, "`init` comes first"
        single = _is_one_key(state.rng_key)
        batch = surrogate_moves.with_chains(state) if single else state
        target = self._target(batch.z, model_args, model_kwargs or {})
        evaluations = jax.vmap(lambda z: target.evaluate(ravel_pytree(z)[0]))(batch.z)
        # The surrogate and its test are of the warm-up and stay; only what belongs to z is computed
        # again.
        new = batch._replace(
            potential_energy=evaluations.energy,
            true_gradient=evaluations.gradient,
            **surrogate_moves.true_counts(batch, 1, 1, state.i < self._sample_fn.num_warmup),
        )
        return surrogate_moves.without_chains(new) if single else new

    def _enough(self, num_warmup: int, c: int, slots: int, d: int) -> bool:
        """Return whether warm-up leaves enough to fit and to test a surrogate; warn if not."""
        needed = self.settings.surrogate.min_gradients(d)
        # Lengths are uniform from 1 to `num_steps`, half of it and a half on average.
        # as long as on average
        training = c * (slots - slots // HELD_OUT) * (1 + self.settings.num_steps) // 2
        if num_warmup > 0 and slots >= HELD_OUT and training >= needed:
            return True
        size, steps = self.settings.history_size, self.settings.num_steps
        got = f"num_warmup={num_warmup}, history_size={size} and num_steps={steps}"
        cure = "Use a longer warm-up." if slots < size // steps else "Use a larger `history_size`."
        message = fault(
            "SurrogateHMC",
            f"a warm-up with {needed} gradients for training and {HELD_OUT} trajectories, one "
            "of them held out",
            got,
            f"NUTS with true gradients is used instead. {cure}",
        )
        warn(message)
        return False

    def _start(
        self,
        keys: Array,
        init_params: Any,
        model_args: tuple[Any, ...],
        model_kwargs: dict[str, Any],
    ) -> Any:
        from numpyro.infer.util import initialize_model

        if self._model is None:
            if init_params is None:
                raise InputError(
                    "SurrogateHMC",
                    "`init_params` with `potential_fn`",
                    "none",
                    "Pass them to MCMC.run.",
                )
            potential = self._potential_fn
            assert potential is not None
            self._potential_gen = lambda *_, **__: potential
            return init_params
        info = initialize_model(
            keys,
            self._model,
            init_strategy=self._init_strategy,
            dynamic_args=True,
            model_args=model_args,
            model_kwargs=model_kwargs,
        )
        self._potential_gen, self._postprocess = info.potential_fn, info.postprocess_fn
        return info.param_info.z if init_params is None else init_params

    def _target(
        self, z: Any, model_args: tuple[Any, ...], model_kwargs: dict[str, Any]
    ) -> surrogate_moves.Potential:
        """Return the potential on flat draws; z : a batch, of which the structure counts."""
        assert self._potential_gen is not None, "`init` comes first"
        return surrogate_moves.flat_target(self._potential_gen(*model_args, **model_kwargs), z)

    def _program(
        self, z: Any, model_args: tuple[Any, ...], model_kwargs: dict[str, Any]
    ) -> surrogate_moves.Iteration:
        bound = self._sample_fn
        assert bound is not None, "`init` comes first"
        return surrogate_moves.Iteration(
            self.settings,
            lambda state: bound.nuts(state, model_args, model_kwargs),
            bound.adapt,
            self._target(z, model_args, model_kwargs),
            bound.num_warmup,
            bound.fits,
        )


def _is_one_key(key: Array) -> bool:
    from numpyro.util import is_prng_key

    return bool(is_prng_key(key))
