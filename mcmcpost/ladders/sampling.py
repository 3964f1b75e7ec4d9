"""Draws of every power posterior of a ladder: the run, more rungs for a finished one, and
checkpoints.

A checkpoint is the state of the sampler and the draws so far in a file, from which an interrupted
run continues.
"""

import hashlib
import io
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from mcmcpost.core.arguments import as_real, check_count, check_flags, check_key, check_kind
from mcmcpost.core.devices import (
    gather_rows,
    is_first_process,
    map_rows,
    no_bar,
    over_devices,
    read_everywhere,
    rows_of_process,
)
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import check_rounding, in_float64
from mcmcpost.core.runtime import written_beside
from mcmcpost.evidence import Ladder, LadderStats, TemperedTarget, check_temperatures
from mcmcpost.evidence.barrier import round_trips
from mcmcpost.evidence.ladder import new_temperatures
from mcmcpost.ladders.lanes import (
    Evaluation,
    Exchanged,
    HamiltonianKernel,
    Plan,
    Pool,
    Position,
    Program,
    Starts,
    check_kernel,
    choose_starts,
    evaluate_at,
    forget_programs,
    make_program,
    prior_pool,
)

DIGEST = hashlib.sha256().digest_size
"""Bytes of the digest that a file begins with: one that is cut off, or changed, is known before it
is read."""


class Checkpoint(NamedTuple):
    """What was stored: iterations done, leaves of the state of all lanes, and their records by
    name."""

    step: int
    state: list[np.ndarray]
    records: dict[str, np.ndarray]


def save_checkpoint(
    path: Path,
    step: int,
    state: list[np.ndarray],
    records: dict[str, np.ndarray],
    settings: dict[str, Any],
) -> None:
    """Write the state after `step` iterations; a crash leaves the previous file intact."""
    # Leaves by number: the classes of NumPyro's states change between versions, which the settings
    # name.
    content: dict[str, Any] = {f"state_{i}": leaf for i, leaf in enumerate(state)}
    content |= {f"record_{name}": array for name, array in records.items()}
    content |= {"step": step, "settings": np.array(json.dumps(settings))}
    buffer = io.BytesIO()
    np.savez(buffer, **content)
    # Written beside and renamed at once: a run that is killed while it writes keeps the last whole
    # file.
    with written_beside(path, f".{path.name}.part") as temporary:
        temporary.write_bytes(hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue())
        temporary.replace(path)


def load_checkpoint(path: Path, settings: dict[str, Any]) -> Checkpoint | None:
    """Return what is stored, read by process 0 for all, or None where there is no file.

    Raises
    ------
    ValueError : the file is no checkpoint or a damaged one, or that of a run with other settings.
    """
    content = read_everywhere(path)
    if content is None:
        return None
    # A zip archive that was cut off may still open and have its first arrays.
    digest, archive = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(archive).digest() != digest:
        got = f"{len(content)} bytes that are not one, or not the whole"
        cure = "Remove it to start again, or name another file."
        raise InputError("checkpoint", f"a file of this function at {path}", got, cure)
    # Without pickles: a file of unknown origin must not run code.
    with np.load(io.BytesIO(archive), allow_pickle=False) as file:
        arrays = dict(file)
    stored = json.loads(str(arrays["settings"]))
    wrong = [name for name in settings if not _same(stored.get(name), settings[name])]
    if wrong:
        got = ", ".join(f"{name}={_short(stored.get(name))}" for name in wrong)
        wanted = ", ".join(f"{name}={_short(settings[name])}" for name in wrong)
        raise InputError(
            "checkpoint",
            f"the run that {path} belongs to",
            f"{wanted}; there {got}",
            "Use another file.",
        )
    state = [arrays[f"state_{i}"] for i in range(sum(name.startswith("state_") for name in arrays))]
    records = {
        name.removeprefix("record_"): array
        for name, array in arrays.items()
        if name.startswith("record_")
    }
    return Checkpoint(int(arrays["step"]), state, records)


def checkpoint_path(where: str, checkpoint: str | os.PathLike[str] | None) -> Path | None:
    """Return the path, whose folder must exist where process 0 runs."""
    if checkpoint is None:
        return None
    check_kind(where, "checkpoint", checkpoint, (str, os.PathLike), "Name a file.")
    path = Path(checkpoint)
    # Other processes may be on machines without that folder; only the first one reads and writes
    # it.
    if is_first_process() and (not path.parent.is_dir() or path.is_dir()):
        raise InputError(
            where, "`checkpoint` to be a file in an existing folder", str(path), "Create it first."
        )
    return path


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list) and one and isinstance(one[0], float):
        # Another machine or number of devices rounds the log likelihoods differently; another model
        # differs by far more.
        return len(one) == len(other) and bool(
            np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True)
        )
    return bool(one == other)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."


POOL = 256
"""Least number of prior draws from which the starts are chosen."""

CHUNKS = 50
"""Parts of one run: how often the progress bar moves, processes meet and the checkpoint is
written."""


class SampledLadder(NamedTuple):
    """A ladder and how it was sampled."""

    ladder: Ladder
    stats: LadderStats


class RunLength(NamedTuple):
    """Iterations to adapt in and to keep, per chain and rung, and chains per rung."""

    num_warmup: int
    num_samples: int
    num_chains: int


class Run(NamedTuple):
    """The arguments of a run, checked."""

    where: str
    target: TemperedTarget
    temperatures: Float[np.ndarray, " t"]
    kernel: HamiltonianKernel
    length: RunLength
    exchange: int | None
    init: Float[np.ndarray, " d"] | None
    starts: Starts | None
    progress: bool
    checkpoint: Path | None


def sample_ladder(
    target: TemperedTarget,
    temperatures: object,
    *,
    key: jax.Array,
    num_warmup: int = 500,
    num_samples: int = 500,
    num_chains: int = 4,
    kernel: HamiltonianKernel | None = None,
    init: object = None,
    exchange: int | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> SampledLadder:
    """Sample every power posterior p(x|y, t) ∝ p(y|x)ᵗ p(x) of a ladder in one program.

    Rungs × chains are the lanes of one vectorised kernel over the devices of all processes; each
    adapts its own step size and mass matrix. The prior rung is drawn iid. Work is in float64,
    unless JAX knows the arrays that the target reads in float32 alone, see `in_either_precision`.

    Parameters
    ----------
    target : prior and likelihood on the unconstrained space, written in JAX.
    temperatures : inverse temperatures, increasing from 0 to 1.
    key : split once, for prior draws, starts, chains and swaps.
    num_warmup, num_samples, num_chains : iterations to adapt in and to keep, per chain and rung,
        and chains per rung.
    kernel : NUTS by default.
    init : (d,) a start for the cold rungs, such as the posterior mode; the others start from prior
        draws resampled by their tempered likelihood, and so do all without it.
    exchange : iterations between swaps of neighbouring rungs (population MCMC); None for
        independent rungs.
    progress : show a progress bar, on a terminal only.
    checkpoint : a file, written as the run goes on and read where it exists: a resumed run gives
        the draws of an uninterrupted one.

    Returns
    -------
    SampledLadder : the ladder and the sampler's statistics. Chains that diverge or do not move
        raise nothing: the statistics show them.

    Raises
    ------
    ValueError : a bad ladder or setting, a prior that is nowhere finite, no start of finite
        likelihood, or a checkpoint of another run.
    """
    where = "Temperature ladder"
    levels = check_temperatures(where, temperatures)
    counts = RunLength(num_warmup, num_samples, num_chains)
    return sample_rungs(
        where,
        target,
        levels,
        counts,
        key=key,
        kernel=kernel,
        init=init,
        exchange=exchange,
        progress=progress,
        checkpoint=checkpoint,
    )


def sample_rungs(
    where: str,
    target: TemperedTarget,
    temperatures: Float[np.ndarray, " t"],
    length: RunLength,
    *,
    key: jax.Array,
    kernel: HamiltonianKernel | None = None,
    init: object = None,
    exchange: int | None = None,
    starts: Starts | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> SampledLadder:
    """Sample some rungs, whatever their temperatures; `starts` are chosen from prior draws by
    default."""
    # All that a person can get wrong is refused here, before minutes of compilation.
    choice = HamiltonianKernel() if kernel is None else kernel
    check_kernel(where, choice)
    for name, value in length._asdict().items():
        check_count(where, name, value, "Use a positive integer.")
    check_count(where, "exchange", exchange, "Leave it out for independent rungs.", optional=True)
    check_key(where, key)
    check_flags(where, progress=progress)
    start = None if init is None else as_real(where, "init", init).astype(np.float64)
    if start is not None and (start.shape != (len(target.names),) or not np.isfinite(start).all()):
        raise InputError(
            where,
            f"`init` of {len(target.names)} finite numbers",
            init,
            "Give it on the unconstrained space.",
        )
    path = checkpoint_path(where, checkpoint)
    run = Run(where, target, temperatures, choice, length, exchange, start, starts, progress, path)
    try:
        return in_float64(_sample)(run, key)
    finally:
        if not jax.config.jax_enable_x64:
            # Programs that are kept would keep what the target reads in 64 bits, for every later
            # run of the person.
            forget_programs()


def _sample(run: Run, key: jax.Array) -> SampledLadder:
    # Split once and by purpose: `init` or exchange, asked for or not, leave the other streams as
    # they are.
    prior_key, near_key, start_key, chain_key, swap_key = jax.random.split(key, 5)
    prior = _draw_prior(run, prior_key)
    # The prior rung is drawn iid and is no lane; an added rung has no prior below it.
    lower = int(run.temperatures[0] == 0)
    lanes = run.temperatures[lower:]
    if run.starts is None:
        # Candidates are the prior's own draws, which are there in any case.
        pool = prior_pool(
            run.where,
            run.target,
            prior.draws.reshape(-1, len(run.target.names)),
            jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), prior.values),
            run.init,
            run.length.num_chains,
            near_key,
        )
        starts = choose_starts(pool, lanes, run.length.num_chains, start_key)
    else:
        starts = run.starts
    # see `in_either_precision`
    with jax.enable_x64(prior.values.log_likelihood.dtype == np.float64):
        step_size, records = _drive(run, lanes, starts, prior, (chain_key, swap_key), key)
    return _assemble(run, prior, step_size, records)


class _Prior(NamedTuple):
    """Prior draws (w + n, c, d) and their values; the prior rung keeps the last n."""

    draws: np.ndarray
    values: Evaluation
    before: int


def _draw_prior(run: Run, key: jax.Array) -> _Prior:
    warmup, samples, chains = run.length
    # With exchange every iteration, warm-up included, meets a prior draw of its own; without it,
    # draws before those of the rung only serve the starts, and `POOL` of them do.
    kept = samples if run.temperatures[0] == 0 or run.exchange is not None else 0
    before = warmup if run.exchange is not None else max(0, -(-POOL // chains) - kept)
    keys = jax.random.split(key, (before + kept) * chains)
    draws = np.asarray(map_rows(run.target.sample_prior, keys), np.float64).reshape(
        before + kept, chains, -1
    )
    values = evaluate_at(run.target, draws, forward_mode=run.kernel.forward_mode)
    check_rounding(run.where, values.log_likelihood)
    return _Prior(draws, values, before)


class _Lanes(NamedTuple):
    """What does not change while the lanes of this process move.

    lane : (l,) indices among all lanes, equally many on each device. temperatures : (l,).
    levels : (t,) of the sampled rungs. with_prior : whether there is a prior rung below. key : of
        steps and swaps.
    """

    program: Program
    plan: Plan
    lane: jax.Array
    temperatures: jax.Array
    levels: Float[np.ndarray, " t"]
    with_prior: bool
    key: jax.Array

    def gather(self, local: Any, axis: int = 0) -> Any:
        """Return what all processes have of their lanes, along an axis of arrays."""
        number = self.plan.rungs * self.plan.chains
        # Lanes that were repeated to fill the devices are dropped here.
        share = (slice(None),) * axis + (slice(len(rows_of_process(number))),)
        return gather_rows(
            jax.tree.map(lambda leaf: np.asarray(leaf)[share], local), number, axis=axis
        )

    def whole(self, state: Any) -> list[np.ndarray]:
        """Return the leaves of the state of all lanes."""
        return [
            self.gather(leaf) if leaf.ndim else np.asarray(leaf)
            for leaf in map(_data, jax.tree.leaves(state))
        ]

    def local_state(self, stored: list[np.ndarray], like: Any) -> Any:
        """Return the state of this process's lanes from the leaves of all, shaped and placed as
        `like`."""
        leaves, structure = jax.tree.flatten(like)
        # By index among all lanes: a run may resume on another number of processes.
        index = np.asarray(self.lane)
        mine = [array[index] if array.ndim else array for array in stored]
        return jax.tree.unflatten(
            structure, [_leaf(leaf, array) for leaf, array in zip(leaves, mine, strict=True)]
        )


def _data(leaf: jax.Array) -> jax.Array:
    return (
        jax.random.key_data(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf
    )


def _leaf(like: jax.Array, stored: np.ndarray) -> jax.Array:
    # Typed keys are no arrays to NumPy: files hold their data.
    typed = jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key)
    leaf = (
        jax.random.wrap_key_data(jnp.asarray(stored), impl=jax.random.key_impl(like))
        if typed
        else stored
    )
    return jax.device_put(leaf, like.sharding)


def _drive(
    run: Run,
    levels: np.ndarray,
    starts: Starts,
    prior: _Prior,
    keys: tuple[jax.Array, jax.Array],
    key: jax.Array,
) -> tuple[Float[np.ndarray, " l"], dict[str, np.ndarray]]:
    """Run the chunks, resuming from the checkpoint where there is one, and return step sizes and
    all records."""
    warmup, samples, chains = run.length
    total = warmup + samples
    # Capacity is at most the iterations between rounds of exchange, at each of which the program
    # stops.
    chunk = -(-total // CHUNKS)
    plan = Plan(len(levels), chains, warmup, run.exchange, min(chunk, run.exchange or chunk))
    lanes, state = _initial(run, plan, levels, starts, keys)
    settings = _settings(run, key, prior)
    records: dict[str, np.ndarray] = {}
    done = 0
    if run.checkpoint is not None:
        checkpoint = load_checkpoint(run.checkpoint, settings)
        if checkpoint is not None:
            done, records, state = (
                checkpoint.step,
                checkpoint.records,
                lanes.local_state(checkpoint.state, state),
            )
    with tqdm(
        total=total, initial=done, desc="ladder", disable=no_bar(run.progress), leave=False
    ) as bar:
        while done < total:
            # No chunk goes on beyond the end of warm-up: its records are kept all or not at all.
            count = min(chunk, (warmup if done < warmup else total) - done)
            state, new = _advance(lanes, state, prior, done, count)
            records = _append(records, new, done < warmup)
            done += count
            bar.update(count)
            if run.checkpoint is not None:
                whole = lanes.whole(state)
                if is_first_process():
                    save_checkpoint(run.checkpoint, done, whole, records, settings)
    return lanes.gather(state.adapt_state.step_size), records


def _initial(
    run: Run, plan: Plan, levels: np.ndarray, starts: Starts, keys: tuple[jax.Array, jax.Array]
) -> tuple[_Lanes, Any]:
    """Return the lanes of this process and their first state."""
    rungs, chains, d = starts.draws.shape
    rows = rows_of_process(rungs * chains)
    # A sharded axis must divide by the number of devices: the last lane is computed again to fill
    # them.
    padded = -(-len(rows) // jax.local_device_count()) * jax.local_device_count()
    lane = rows[np.minimum(np.arange(padded), len(rows) - 1)]
    program = make_program(run.target, run.kernel, plan)
    temperatures = over_devices(np.repeat(levels, chains)[lane])
    draws = over_devices(starts.draws.reshape(-1, d)[lane])
    mass = over_devices(np.repeat(starts.inverse_mass, chains, axis=0)[lane])
    state = program.init(
        over_devices(jax.random.split(keys[0], rungs * chains)[lane]), draws, temperatures, mass
    )
    with_prior = len(levels) < len(run.temperatures)
    return _Lanes(
        program, plan, over_devices(lane), temperatures, levels, with_prior, keys[1]
    ), state


def _advance(
    lanes: _Lanes, state: Any, prior: _Prior, first: int, count: int
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the state after `count` iterations, and the records of all lanes."""
    exchange = lanes.plan.exchange
    # By the absolute iteration, so that where chunks begin does not matter.
    swapping = [
        i for i in range(first, first + count) if exchange is not None and i % exchange == 0
    ]
    pairs = 0 if exchange is None else lanes.plan.rungs - 1 + lanes.with_prior
    parts, swaps = [], []
    begin = first
    for stop in sorted({*(i + 1 for i in swapping), first + count}):
        # Ends after each iteration that swaps: a swap needs the positions of all processes, which a
        # compiled loop on one of them cannot have.
        state, position, records = lanes.program.advance(
            state, lanes.lane, lanes.temperatures, lanes.key, begin, stop - begin
        )
        recorded = jax.tree.map(
            lambda leaf, length=stop - begin: np.asarray(leaf)[:length], records
        )
        decisions = np.zeros((2, stop - begin, pairs, lanes.plan.chains), bool)
        if stop - 1 in swapping:
            exchanged = _exchange(lanes, state, position, prior, stop - 1)
            # Placed as before: another sharding of the state would compile `advance` a second time.
            state = state._replace(
                **{
                    name: jax.device_put(leaf, getattr(state, name).sharding)
                    for name, leaf in exchanged.moved.items()
                }
            )
            # A swap is part of its iteration: the record has the state after it.
            recorded = jax.tree.map(
                lambda rows, last: np.concatenate([rows[:-1], [last]]), recorded, exchanged.record
            )
            decided = np.stack([exchanged.accepted, exchanged.proposed])
            decisions = np.concatenate([decisions[:, :-1], decided[:, None]], axis=1)
        parts.append(recorded)
        swaps.append(decisions)
        begin = stop
    local = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    accepted, proposed = np.concatenate(swaps, axis=1)
    return state, lanes.gather(local, axis=1)._asdict() | {
        "accepted": accepted,
        "proposed": proposed,
    }


def _exchange(
    lanes: _Lanes, state: Any, position: Position, prior: _Prior, iteration: int
) -> Exchanged:
    """Swap between the rungs of all processes, each of which decides by itself, with the same
    key."""
    partner = None
    if lanes.with_prior:
        # The prior draw of the same iteration, so that the prior rung's record is the state that
        # took part in the swap.
        partner = Position(
            prior.draws[iteration], jax.tree.map(lambda array: array[iteration], prior.values)
        )
    return lanes.program.exchange(
        state,
        lanes.lane,
        lanes.temperatures,
        lanes.levels,
        lanes.key,
        iteration,
        lanes.gather(position),
        partner,
    )


def _append(
    records: dict[str, np.ndarray], new: dict[str, np.ndarray], warmup: bool
) -> dict[str, np.ndarray]:
    """Return the records with a chunk added: counters of work always, draws after warm-up only."""
    # What the chains needed, and what was computed: in lockstep every lane waits for the longest
    # trajectory. NUTS computes 1.8 times what separate runs do on 31 rungs (docs/results,
    # ladder_sampling).
    steps = new["num_steps"].sum(), new["num_steps"].max(axis=1).sum()
    work = records.get("work", np.zeros(2, np.int64)) + np.array(steps, np.int64)
    if warmup:
        return records | {"work": work}
    joined = {
        name: np.concatenate([records[name], rows]) if name in records else rows
        for name, rows in new.items()
    }
    return joined | {"work": work}


def _settings(run: Run, key: jax.Array, prior: _Prior) -> dict[str, Any]:
    return {
        "numpyro": version("numpyro"),
        "temperatures": run.temperatures.tolist(),
        "length": list(map(int, run.length)),
        "kernel": repr(run.kernel),
        "exchange": run.exchange,
        "names": list(run.target.names),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "init": None if run.init is None else run.init.tolist(),
        # Functions cannot be compared; their values at eight prior draws of the same key can.
        "log_likelihood": np.asarray(prior.values.log_likelihood, float).reshape(-1)[:8].tolist(),
    }


def _assemble(
    run: Run, prior: _Prior, step_sizes: Float[np.ndarray, " l"], records: dict[str, np.ndarray]
) -> SampledLadder:
    _, samples, chains = run.length
    lower = int(run.temperatures[0] == 0)
    rungs = len(run.temperatures) - lower

    def lanes(array: np.ndarray) -> np.ndarray:
        """(n, l, ...) → (c, n, t, ...)"""
        rows = array.reshape(len(array), rungs, chains, *array.shape[2:])
        return np.moveaxis(rows, 2, 0)

    def below(array: np.ndarray, first: np.ndarray) -> np.ndarray:
        return np.concatenate([first[:, :, None], lanes(array)], axis=2) if lower else lanes(array)

    def iid(array: Any) -> np.ndarray:
        return np.moveaxis(np.asarray(array)[prior.before :], 1, 0)

    ladder = Ladder(
        run.temperatures,
        below(records["draw"], iid(prior.draws)),
        below(records["log_likelihood"], iid(prior.values.log_likelihood)),
        below(records["gradient_log_likelihood"], iid(prior.values.gradient_log_likelihood)),
        below(records["gradient_log_prior"], iid(prior.values.gradient_log_prior)),
        run.target.names,
    )
    shape = (chains, samples)
    with np.errstate(invalid="ignore"):
        # 0/0 without exchange is NaN, "unknown" and not "never accepted".
        rate = (records["accepted"].sum(axis=0) / records["proposed"].sum(axis=0)).T
    swap_rate = np.full((chains, len(run.temperatures)), np.nan)
    swap_rate[:, : rate.shape[1]] = rate
    step_size = step_sizes.reshape(rungs, chains).T
    stats = LadderStats(
        # An independent draw has no trajectory: it always accepts and costs no gradient.
        below(records["accept_prob"], np.ones(shape)),
        below(records["num_steps"], np.zeros(shape, int)),
        below(records["diverging"], np.zeros(shape, bool)),
        np.concatenate([np.full((chains, lower), np.nan), step_size], axis=1),
        swap_rate,
        0 if run.exchange is None else round_trips(records["accepted"]),
        int(records["work"][0]),
        int(records["work"][1]) * rungs * chains,
    )
    return SampledLadder(ladder, stats)


def sample_more_rungs(
    ladder: Ladder,
    target: TemperedTarget,
    temperatures: object,
    *,
    key: jax.Array,
    num_warmup: int = 500,
    kernel: HamiltonianKernel | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> SampledLadder:
    """Sample rungs at new temperatures only, with as many chains and draws as the ladder has.

    They start from the draws of the next hotter rung, resampled by exp((t − t₀)ℓ).

    Parameters
    ----------
    ladder : a finished ladder.
    target : what it was sampled from.
    temperatures : new inverse temperatures inside (0, 1).
    key, num_warmup, kernel, progress, checkpoint : as in `sample_ladder`.

    Raises
    ------
    ValueError : a temperature is outside (0, 1), repeated or in the ladder already; the target has
        other coordinates.
    """
    where = "add_rungs"
    levels = new_temperatures(where, ladder, temperatures)
    check_key(where, key)
    if target.names != ladder.names:
        raise InputError(
            where, f"a target on {ladder.names}", target.names, "Pass the model of the ladder."
        )
    start_key, run_key = jax.random.split(key)
    # As many chains and draws as the ladder has: rungs of one tree share these dims.
    chains, draws = ladder.draws.shape[:2]
    starts = in_float64(_starts_from)(ladder, levels, chains, start_key)
    return sample_rungs(
        where,
        target,
        levels,
        RunLength(num_warmup, draws, chains),
        key=run_key,
        kernel=kernel,
        starts=starts,
        progress=progress,
        checkpoint=checkpoint,
    )


def _starts_from(
    ladder: Ladder, levels: Float[np.ndarray, " t"], chains: int, key: jax.Array
) -> Starts:
    parts = []
    for level, rung_key in zip(levels, jax.random.split(key, len(levels)), strict=True):
        # The hotter neighbour covers the new rung; from the colder one the weights exp((t − t₀)ℓ),
        # t < t₀, would have no draws in the tails.
        hotter = int(np.searchsorted(ladder.temperatures, level)) - 1
        draws = ladder.draws[:, :, hotter].reshape(-1, ladder.draws.shape[-1])
        likelihood = ladder.log_likelihood[:, :, hotter].reshape(-1)
        pool = Pool(draws, likelihood, np.full(len(draws), ladder.temperatures[hotter]))
        parts.append(choose_starts(pool, level[None], chains, rung_key))
    return Starts(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
