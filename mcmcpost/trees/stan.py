"""Stan: scores through the models of PyStan 3 and BridgeStan, and CmdStan's files."""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mcmcpost.core.arguments import as_path, check_flags, check_kind, missing_file
from mcmcpost.core.errors import InputError, MissingPackageError, fault, shortest, warn
from mcmcpost.core.precision import digits_of_text
from mcmcpost.core.runtime import version_of
from mcmcpost.trace import Trace, check_same_order, make_trace
from mcmcpost.trees.convention import GROUP, posterior_sites, sample_dataset, with_trace
from mcmcpost.trees.diagnostics import RowDensity, gate, gate_attrs
from mcmcpost.trees.tables import (
    STATISTICS,
    posterior_tree,
    sampler_statistics,
)

if TYPE_CHECKING:
    import pandas
    import xarray


_CURE = "Keep every parameter when sampling, and pass the model, with the data, that was sampled."


def pystan_density(
    where: str, tree: "xarray.DataTree", model: Any, *, normalised: bool
) -> RowDensity:
    """Return the draws of `tree` and the density of a ``stan.model.Model``, by its ``log_prob`` and
    ``grad_log_prob``.

    PyStan answers each question through a server of its own, about ten milliseconds a draw.
    Coordinates are labelled by the parameters where those are as many as the unconstrained ones,
    else ``unconstrained[i]``.

    Raises
    ------
    ValueError : Stan cannot read its parameters from the draws; a `normalised` density is asked
        for.
    """
    if normalised:
        got, cure = (
            "a model of PyStan, whose density drops them",
            "Compile the program with BridgeStan.",
        )
        raise InputError(where, "a density with all of its constants", got, cure)
    # Generated quantities are no parameters, and PyStan refuses names that it does not know.
    sites = {
        name: site
        for name, site in posterior_sites(where, tree).items()
        if name in model.param_names
    }
    if not sites:
        raise InputError(
            where,
            f"some of {', '.join(model.param_names)} among the draws",
            "none",
            "Pass the model's own trace.",
        )
    lead = next(iter(sites.values())).shape[:2]
    # CmdStan wrote six digits until 2.36: a simplex that sums to 1 + 1e-6 is refused by Stan, which
    # allows 1e-8.
    flat = {name: _unrounded(site).reshape(-1, *site.shape[2:]) for name, site in sites.items()}

    def unconstrain(i: int) -> Any:
        return model.unconstrain_pars({name: site[i].tolist() for name, site in flat.items()})

    draws = _unconstrained(where, unconstrain, lead, sites)
    size = draws.shape[-1]
    constrained = model.constrain_pars(
        draws[0, 0].tolist(), include_tparams=False, include_gqs=False
    )
    labels = tuple(model.constrained_param_names[:size])
    # A simplex of k entries has k − 1 unconstrained values: constrained names would label the wrong
    # ones.
    names = (
        labels if len(constrained) == size else tuple(f"unconstrained[{i}]" for i in range(size))
    )
    return RowDensity(
        draws,
        names,
        # adjust_transform adds the log-Jacobian, which PyStan's `grad_log_prob` has by default.
        lambda row: float(model.log_prob(row.tolist(), adjust_transform=True)),
        lambda row: np.array(model.grad_log_prob(row.tolist()), dtype=np.float64),
        {"pystan_version": version_of("pystan") or "unknown"},
    )


def bridgestan_density(
    where: str, tree: "xarray.DataTree", model: Any, *, normalised: bool
) -> RowDensity:
    """Return the draws of `tree` and the density of a ``bridgestan.StanModel``, with the
    log-Jacobian.

    A `normalised` one keeps the constants of the distributions, also of those after ``~``.
    Coordinates are labelled by ``model.param_unc_names()``. A draw at which the program throws has
    no finite density.

    Raises
    ------
    ValueError : a parameter is not among the draws, or is of another shape there.
    """
    sites = posterior_sites(where, tree)
    whole = {name: _unrounded(site) for name, site in sites.items()}
    columns = [_element(where, whole, name) for name in model.param_names()]
    theta = np.stack(columns, axis=-1)
    # BridgeStan hands pointers to C: a strided row would be read as what lies behind it.
    flat = np.ascontiguousarray(theta.reshape(-1, theta.shape[-1]))
    used = {name.partition(".")[0] for name in model.param_names()}
    known = {name: site for name, site in sites.items() if name in used}
    draws = _unconstrained(
        where, lambda i: model.param_unconstrain(flat[i]), theta.shape[:2], known
    )

    def logdensity(row: np.ndarray) -> float:
        try:
            return float(
                model.log_density(np.ascontiguousarray(row), propto=not normalised, jacobian=True)
            )
        # `reject()` and failed solves throw: for a sampler, too, such a point has no density.
        except RuntimeError:
            return -np.inf

    return RowDensity(
        draws,
        tuple(model.param_unc_names()),
        logdensity,
        # Constants have no gradient, and without them it is cheaper.
        lambda row: model.log_density_gradient(
            np.ascontiguousarray(row), propto=True, jacobian=True
        )[1],
        {"bridgestan_version": version_of("bridgestan") or "unknown"},
    )


def stan_model(path: Path, data: Path | None) -> Any:
    """Return the ``bridgestan.StanModel`` of a Stan program and its data, a JSON file; it is
    compiled where needed.

    Raises
    ------
    MissingPackageError : BridgeStan is not installed.
    FileNotFoundError : there is no such program, or no such data.
    ValueError : BridgeStan's C++ sources or the compiler are missing, the program is not valid, or
        needs other data.
    """
    where = f"Stan program {path}"
    for kind, file in (("program", path), ("JSON file of data", data)):
        if file is not None and file.is_dir():
            raise InputError(where, f"a {kind}", f"the folder {file}", "Name the file in it.")
        if file is not None and not file.is_file():
            raise missing_file(where, f"an existing {kind}", file)
    try:
        import bridgestan
    except ImportError as error:
        cure = "Install it: pip install bridgestan; it also needs make and a C++ compiler."
        raise MissingPackageError(
            where, "the package bridgestan, which computes its scores", "none", cure
        ) from error
    # Only standard output, in which a command's own table or JSON stands.
    # it says line by line that it downloads its sources, and could not
    with redirect_stdout(StringIO()):
        try:
            library = bridgestan.compile_model(path)
        except (OSError, ValueError, RuntimeError) as error:
            cure = (
                "It needs make, a C++ compiler and BridgeStan's sources, which it downloads "
                "once; without the network, set BRIDGESTAN to a copy of them."
            )
            raise InputError(
                where, "a program that BridgeStan compiles", _cause(error), cure
            ) from error
        try:
            return bridgestan.StanModel(library, None if data is None else str(data), warn=False)
        except (OSError, ValueError, RuntimeError) as error:
            got = _cause(error) + ("" if data is not None else ", without data")
            raise InputError(
                where, "the data of the program", got, "Give its JSON file: --data data.json."
            ) from error


def _cause(error: Exception) -> str:
    """Return the line of an error that says what is wrong: compilers and make print many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # make prints the commands first: the first line that names a fault is the cause, later ones
    # follow from it.
    telling = (
        line
        for line in lines
        if re.search(r"error|exception|not found|no such", line, re.IGNORECASE)
    )
    return next(telling, lines[0] if lines else type(error).__name__)[:300].rstrip(".")


_ROUNDED = 1e-4
"""By how much the sum of a simplex, or the squares of a row, may be off one in a text file; Stan
allows 1e-8."""


def _unrounded(values: np.ndarray) -> np.ndarray:
    """Return draws (c, n, ...) of a text file with what has to be one made one: sums, diagonals,
    squares of rows.

    Simplexes and the rows of Cholesky factors of correlations are scaled, and the diagonal of a
    correlation matrix is set, where every draw has them to within rounding; other variables are
    returned as they are.
    """
    # Draws of full precision are never touched: what is off there is wrong, and not rounded.
    if (
        values.ndim < 3
        or values.dtype.kind != "f"
        or not np.isfinite(values).all()
        or digits_of_text(values) is None
    ):
        return values
    square = values.ndim > 3 and values.shape[-1] == values.shape[-2]
    totals, norms = (
        values.sum(axis=-1, keepdims=True),
        np.sqrt((values**2).sum(axis=-1, keepdims=True)),
    )
    diagonal = np.diagonal(values, axis1=-2, axis2=-1)
    # At every draw: a vector that adds up to one now and then is no simplex.
    if (values >= 0).all() and (np.abs(totals - 1) < _ROUNDED).all():
        return values / totals
    if square and (np.abs(norms - 1) < _ROUNDED).all() and (np.triu(values, 1) == 0).all():
        return values / norms
    if square and (diagonal != 1).any() and (np.abs(diagonal - 1) < _ROUNDED).all():
        return np.where(
            np.eye(values.shape[-1], dtype=bool), 1.0, (values + np.swapaxes(values, -1, -2)) / 2
        )
    return values


def _unconstrained(
    where: str,
    unconstrain: Callable[[int], Any],
    lead: tuple[int, ...],
    sites: dict[str, np.ndarray],
) -> np.ndarray:
    """Return the unconstrained values (c, n, d) of every draw; name the first that has none, by
    chain and draw."""
    rows = []
    for i in range(lead[0] * lead[1]):
        refused = ""
        try:
            rows.append(np.asarray(unconstrain(i), dtype=np.float64))
            if np.isinf(rows[-1]).any():  # NaN is left to the trace
                refused = "a value on the boundary"
        except RuntimeError as error:
            refused = str(error).strip()[:300]
        if not refused:
            continue
        values = {name: site.reshape(-1, *site.shape[2:])[i, ...] for name, site in sites.items()}
        got, cure = f"chain {i // lead[1]}, draw {i % lead[1]}: {refused}", _CURE
        # Stan's message names neither the variable nor the cause, a correlation that rounding moved
        # to one.
        ends = [name for name, value in values.items() if _on_an_end(value)]
        if ends:
            got = f"{' and '.join(ends)} with a correlation of exactly one or minus one at {got}"
        if ends or any(site.dtype.kind == "f" and digits_of_text(site) for site in sites.values()):
            cure = (
                "Numbers of few digits are no longer inside: write the file with sig_figs=18. "
                f"{_CURE}"
            )
        raise InputError(where, "the parameters of the Stan program among the draws", got, cure)
    return np.stack(rows).reshape(*lead, -1)


def _on_an_end(value: np.ndarray) -> bool:
    """Return whether a matrix (k, k) of correlations, or its Cholesky factor, has one of one or
    minus one."""
    if value.ndim != 2 or value.shape[0] != value.shape[1]:
        return False
    matrix = value @ value.T if (np.triu(value, 1) == 0).all() else value
    unit = np.abs(np.diagonal(matrix) - 1) < _ROUNDED
    return bool(unit.all() and (np.abs(matrix[~np.eye(len(value), dtype=bool)]) >= 1).any())


def _element(where: str, sites: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return the draws (c, n) of one element, named ``theta.1.2`` and counted from one as in
    Stan."""
    site, *index = name.split(".")
    if site not in sites:
        raise InputError(where, f"`{site}` among the draws", ", ".join(sites), _CURE)
    # Stan counts from one.
    values, place = sites[site], tuple(int(i) - 1 for i in index)
    if len(place) != values.ndim - 2 or any(
        i >= n for i, n in zip(place, values.shape[2:], strict=True)
    ):
        raise InputError(where, f"`{site}` with an element {name}", values.shape, _CURE)
    key: tuple[Any, ...] = (slice(None), slice(None), *place)
    return values[key].astype(np.float64)


_WHERE = "from_cmdstan"

_RECORDED = ("seed", "num_warmup", "thin")
"""Settings of the header that trees have among their attributes; draws are those after thinning."""

_SAME = 1e-5
"""Part of the largest value by which a number in files of six digits may differ."""


class _File(NamedTuple):
    """Settings from the comments, the draws after warm-up, and the seconds that both took, where
    the file says so."""

    path: Path
    settings: dict[str, str]
    table: "pandas.DataFrame"
    seconds: float | None


def from_cmdstan(
    diagnostics: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    outputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    allow_bad_scores: bool = False,
) -> "xarray.DataTree":
    """Return the tree of a CmdStan run that wrote ``output diagnostic_file=…``, after the score
    gate.

    The diagnostic file of a chain holds, for every draw, the unconstrained parameters q, the
    momenta and the gradient of the potential, ``g_NAME`` = −∂ log density/∂q, log-Jacobian
    included: the score is its negative and costs nothing. CmdStanPy writes such files with
    ``save_latent_dynamics=True``.

    Parameters
    ----------
    diagnostics : the diagnostic file of each chain, one path or several.
    outputs : the ordinary output files of the same chains in the same order: their constrained
        parameters, transformed parameters and generated quantities become the posterior group.
        Without them that holds the unconstrained parameters.
    allow_bad_scores : keep scores that the gate would refuse.

    Returns
    -------
    DataTree : groups `posterior` and `sample_stats`; warm-up that was saved is left out.
        Coordinates keep Stan's names, as ``theta.1``. The attribute `sampling_time` is the elapsed
        time of the slowest chain, in seconds.

    Raises
    ------
    FileNotFoundError : there is no such file.
    ValueError : a file is not such a CSV, a chain is given twice, chains differ in length,
        parameters or their order, or outputs are those of other draws.
    ScoreError : the scores fail the gate.

    Source: CmdStan User's Guide, “Stan CSV file format”;
    stan/mcmc/hmc/hamiltonians/base_hamiltonian.hpp for the sign.
    """
    check_flags(_WHERE, allow_bad_scores=allow_bad_scores)
    chains = [_read(path) for path in _paths(diagnostics, "diagnostics")]
    given = None if outputs is None else [_read(path) for path in _paths(outputs, "outputs")]
    tree, trace = _scored(chains, given)
    return with_trace(
        tree, trace, gate_attrs(gate(trace, allow_bad_scores)) | {"score_evaluations": "0"}
    )


def is_cmdstan(path: Path) -> bool:
    """Return whether a file is a CSV that CmdStan itself wrote: an output, or a diagnostic file.

    Tables of CmdStanPy and of R have columns that say which chain a draw is of.
    """
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = next((line for line in file if line.strip() and not line.startswith("#")), "")
    columns = [column.strip().strip('"') for column in header.split(",")]
    # CmdStan writes a file for each chain; with a column of chains it is a table of another
    # program, which `read_csv` reads.
    chains = {"chain", ".chain", "chain__"} & set(columns)
    return (
        "lp__" in columns
        and not chains
        and any(c.startswith(("g_", "accept_stat__")) for c in columns)
    )


def load_cmdstan(paths: Sequence[Path]) -> "xarray.DataTree":
    """Return the tree of CmdStan's files, each of one chain, which are told apart by their columns.

    Without diagnostic files among them, those that the headers of the outputs name are looked for
    beside the outputs. Where there are none, the tree has no scores, and `attach_scores` computes
    them. The score gate is not run.

    Warns
    -----
    UserWarning : there are diagnostic files alone, which have unconstrained values under the names
        of the parameters.

    Raises
    ------
    ValueError : as `from_cmdstan`; some outputs have a diagnostic file and others have none.
    """
    chains = [_read(path) for path in paths]
    outputs = [chain for chain in chains if not _is_diagnostic(chain)]
    diagnostics = [chain for chain in chains if _is_diagnostic(chain)]
    # A person names the outputs alone, as CmdStan's guide does.
    if outputs and not diagnostics:
        beside = {output.path: _diagnostic_beside(output) for output in outputs}
        lacking = [str(path) for path, diagnostic in beside.items() if diagnostic is None]
        if len(lacking) == len(outputs):
            return _unscored(outputs)
        if lacking:
            expected, got = "a diagnostic file beside each output", f"none for {', '.join(lacking)}"
            raise InputError(
                _WHERE, expected, got, "Give those of all chains too, or leave out what has none."
            )
        diagnostics = [_read(path) for path in beside.values() if path is not None]
    elif len(outputs) == len(diagnostics):
        # Of `--diagnostics diagnostic_*.csv` the shell leaves the first to the option, and the
        # others come before it.
        matched = [
            next((one for one in diagnostics if _same_draws(output, one)), None)
            for output in outputs
        ]
        if len({id(one) for one in matched if one is not None}) == len(outputs):
            diagnostics = [one for one in matched if one is not None]
    tree, trace = _scored(diagnostics, outputs or None)
    if not outputs:
        # Parameters have the same names in both files: log(sigma) would be taken for sigma.
        warn(
            f"load_tree: {diagnostics[0].path} is a diagnostic file, whose parameters are "
            "unconstrained, as log(sigma) under the name sigma. Give the output files beside the "
            "diagnostic files to have the parameters themselves."
        )
    return with_trace(tree, trace, {"score_evaluations": "0"})


def _is_diagnostic(chain: "_File") -> bool:
    columns = set(chain.table.columns)
    return any(column.startswith("g_") and column[2:] in columns for column in columns)


_NUMBERED = re.compile(r"(?P<name>.*?)(?P<number>([-_]\d+)?)")
"""The stem of a file, with the number of its chain at the end."""


def _diagnostic_beside(output: "_File") -> Path | None:
    """Return the diagnostic file of an output, in the same folder; None where there is none.

    CmdStan puts the number of a chain after both of the names that it was given, and its header
    keeps the names alone. Files that were renamed are found by their number, or where one is called
    output and the other diagnostic, and as CmdStanPy names them: model_1.csv and
    model-diagnostic_1.csv. Whether the draws are the same is tested later.
    """
    stem = output.path.stem
    # The header of output_3.csv says output.csv and diagnostic.csv: both names lack the number of
    # the chain.
    written, recorded = (
        Path(output.settings.get(key, "")).stem for key in ("file", "diagnostic_file")
    )
    match = _NUMBERED.fullmatch(stem)
    assert match is not None  # every text does
    name, number = match["name"], match["number"]
    stems = [recorded + stem.removeprefix(written), recorded + number] if recorded else []
    if not stem.startswith(written):
        stems = stems[1:]
    if "output" in stem:
        stems.append(stem.replace("output", "diagnostic"))
    stems += [f"{name}-diagnostic{number}", f"{name}_diagnostic{number}"]
    places = (output.path.with_name(f"{one}.csv") for one in stems)
    return next((place for place in places if place != output.path and is_cmdstan(place)), None)


def _scored(
    diagnostics: list["_File"], outputs: list["_File"] | None
) -> "tuple[xarray.DataTree, Trace]":
    """Return the tree of chains, and their unconstrained draws and scores."""
    if outputs is not None and len(outputs) == len(diagnostics):
        pairs = [_of_one_length(*both) for both in zip(outputs, diagnostics, strict=True)]
        outputs, diagnostics = map(list, zip(*pairs, strict=True))
    # Columns p_NAME are momenta. A parameter that is itself called g_x has a column g_g_x.
    names = [
        tuple(c.removeprefix("g_") for c in chain.table.columns if c.startswith("g_"))
        for chain in diagnostics
    ]
    for chain, parameters in zip(diagnostics, names, strict=True):
        if not parameters or not set(parameters) <= set(chain.table.columns):
            raise InputError(
                _WHERE,
                f"columns g_NAME, the gradients, beside NAME in {chain.path}",
                ", ".join(map(str, chain.table.columns[:12])) or "none",
                "Run CmdStan with `output diagnostic_file=…`, CmdStanPy with "
                "save_latent_dynamics=True.",
            )
    _check_chains(diagnostics, names)
    columns = _stack(diagnostics)
    draws, scores = (
        np.stack([sign * columns[prefix + name] for name in names[0]], axis=-1)
        # g_NAME is the gradient of the potential (base_hamiltonian.hpp): minus the score.
        for sign, prefix in ((1, ""), (-1, "g_"))
    )
    read = ", ".join(str(chain.path) for chain in diagnostics)
    trace = make_trace(draws, scores, names[0], source=read)
    values = (
        {name: columns[name] for name in names[0]}
        if outputs is None
        else _values(outputs, diagnostics)
    )
    return _tree(values, columns, diagnostics), trace


def _unscored(outputs: list["_File"]) -> "xarray.DataTree":
    _check_chains(outputs, [_quantities(chain) for chain in outputs])
    columns = _stack(outputs)
    tree = _tree({name: columns[name] for name in _quantities(outputs[0])}, columns, outputs)
    if named := outputs[0].settings.get("diagnostic_file"):
        tree[GROUP].attrs["diagnostic_file"] = named  # which the error of missing scores then tells
    return tree


def _quantities(chain: "_File") -> tuple[str, ...]:
    """Return the columns that are no statistics of the sampler."""
    return tuple(name for name in chain.table.columns if name not in STATISTICS)


def _tree(
    values: dict[str, np.ndarray], statistics: dict[str, np.ndarray], chains: list["_File"]
) -> "xarray.DataTree":
    """Return a tree of values and statistics (c, n), with what the headers of the chains record of
    their run."""
    import xarray

    tree = posterior_tree(values)
    tree[GROUP] = xarray.DataTree(sample_dataset(sampler_statistics(statistics)))
    settings = chains[0].settings
    release = ".".join(
        settings.get(f"stan_version_{level}", "?") for level in ("major", "minor", "patch")
    )
    tree[GROUP].attrs |= {"stan_version": release, "stan_model": settings.get("model", "unknown")}
    tree.attrs |= {
        name: int(settings[name]) for name in _RECORDED if settings.get(name, "").isdigit()
    }
    times = [chain.seconds for chain in chains if chain.seconds is not None]
    if len(times) == len(chains):
        # Chains run side by side: the slowest one is what a person waits for.
        tree.attrs["sampling_time"] = max(times)
    return tree


def _paths(given: Any, name: str) -> list[Path]:
    check_kind(_WHERE, name, given, (str, os.PathLike, Iterable), "Give the file of each chain.")
    paths = [
        as_path(_WHERE, path)
        for path in ([given] if isinstance(given, str | os.PathLike) else given)
    ]
    if not paths:
        raise InputError(
            _WHERE, f"at least one file in `{name}`", "none", "Give the file of each chain."
        )
    return paths


def _read(path: Path) -> _File:
    import pandas

    if not path.is_file():
        raise FileNotFoundError(fault(_WHERE, "an existing file", str(path), "Check the path."))
    try:
        text = path.read_text(encoding="utf-8")
        whole, _, last = text.rpartition("\n")
        # Of a run that was killed while it wrote; its last number may have lost digits.
        cut = bool(whole and last) and not last.startswith("#")
        # Comments stand between warm-up and draws and at the end too, where the seconds are.
        table = pandas.read_csv(StringIO(whole if cut else text), comment="#")
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(
            _WHERE, f"a CSV of CmdStan at {path}", str(error).strip(), "Give CmdStan's own file."
        ) from error
    settings = dict(
        re.findall(r"^#\s*(\w+) = (.*?)(?: \(Default\))?\s*$", text, flags=re.MULTILINE)
    )
    if "lp__" not in table:
        raise InputError(
            _WHERE,
            f"a column lp__ in {path}",
            ", ".join(map(str, table.columns[:8])),
            "Give CmdStan's.",
        )
    if table.isna().to_numpy().any() or any(
        values.dtype.kind not in "fi" for _, values in table.items()
    ):
        raise InputError(
            _WHERE,
            f"complete rows of numbers in {path}",
            "some that are not",
            "Give CmdStan's own file, or leave these rows out of it and of its diagnostic file.",
        )
    # pandas takes what is left over for labels
    if not np.array_equal(table.index, np.arange(len(table))):
        got = f"one more than the {len(table.columns)} names"
        raise InputError(
            _WHERE, f"as many values as columns in {path}", got, "Give CmdStan's own file."
        )
    if (method := settings.get("method", "sample")) != "sample":
        cure = "Approximations have no Monte Carlo error: run CmdStan with method=sample."
        raise InputError(_WHERE, f"draws of MCMC in {path}", f"method = {method}", cure)
    if settings.get("save_warmup", "0") in ("1", "true"):
        warmup, thin = settings.get("num_warmup", ""), settings.get("thin", "1")
        if not (warmup.isdigit() and thin.isdigit() and int(thin)):
            got, cure = f"num_warmup = {warmup}, thin = {thin}", "Give CmdStan's own file."
            raise InputError(
                _WHERE, f"settings num_warmup and thin in the comments of {path}", got, cure
            )
        # Warm-up is thinned as well: num_warmup counts iterations and not rows.
        table = table.iloc[-(-int(warmup) // int(thin)) :]
    if table.empty:
        raise InputError(
            _WHERE, f"draws after warm-up in {path}", "none", "The run was cut: run it again."
        )
    if cut:
        warn(
            f"{_WHERE}: the last line of {path} has no end, as of a run that was killed, and is "
            "left out."
        )
    elapsed = re.search(r"^#\s+([\d.eE+-]+) seconds \(Total\)", text, flags=re.MULTILINE)
    return _File(path, settings, table, float(elapsed[1]) if elapsed else None)


def _check_chains(chains: list[_File], names: list[tuple[str, ...]]) -> None:
    least = shortest(_WHERE, [len(chain.table) for chain in chains])
    labels = {str(chain.path): parameters for chain, parameters in zip(chains, names, strict=True)}
    check_same_order(_WHERE, labels)
    for path, parameters in labels.items():
        if parameters != names[0]:
            raise InputError(
                _WHERE,
                f"the parameters {', '.join(names[0])} in {path}",
                ", ".join(parameters),
                "Give one run's files.",
            )
    # A chain that is given twice, under one path or as a copy.
    # Both are wrong alike: the draws would count twice.
    for one, other in itertools.combinations(chains, 2):
        if one.table[:least].equals(other.table[:least]):
            got = f"the same draws in {one.path} and {other.path}"
            raise InputError(_WHERE, "every chain once", got, "Leave one out.")


def _stack(chains: list[_File]) -> dict[str, np.ndarray]:
    """Return the columns (c, n) that all chains have, of the draws that all have."""
    least = min(len(chain.table) for chain in chains)
    shared = [
        name for name in chains[0].table.columns if all(name in chain.table for chain in chains)
    ]
    return {
        name: np.stack([chain.table[name].to_numpy(np.float64)[:least] for chain in chains])
        for name in shared
    }


def _same_draws(output: _File, diagnostic: _File) -> bool:
    """Return whether two files of one chain have the same log densities, to the digits of
    either."""
    # Files are paired by their order, and nothing else in them says which chain they are of.
    one, other = output.table["lp__"].to_numpy(), diagnostic.table["lp__"].to_numpy()
    least = min(len(one), len(other))
    return bool(np.allclose(one[:least], other[:least], rtol=1e-4, atol=1e-4))


def _of_one_length(output: _File, diagnostic: _File) -> tuple[_File, _File]:
    """Return two files of one chain with the draws that both have: a run that is killed has written
    each through a buffer of its own."""
    one, other = len(output.table), len(diagnostic.table)
    if one == other:
        return output, diagnostic
    least = min(one, other)
    warn(
        f"{_WHERE}: {one:,} draws in {output.path} and {other:,} in {diagnostic.path}, as of a run "
        f"that was killed. The first {least:,} are kept."
    )
    return (
        output._replace(table=output.table[:least]),
        diagnostic._replace(table=diagnostic.table[:least]),
    )


def _values(chains: list[_File], diagnostics: list[_File]) -> dict[str, np.ndarray]:
    """Return the quantities (c, n) of the outputs of chains, after checking that they are of the
    diagnostic files."""
    if len(chains) != len(diagnostics):
        raise InputError(
            _WHERE,
            "as many outputs as diagnostic files",
            f"{len(chains)} and {len(diagnostics)}",
            "Give both of each chain.",
        )
    for output, diagnostic in zip(chains, diagnostics, strict=True):
        if not _same_draws(output, diagnostic):
            raise InputError(
                _WHERE,
                f"the draws of {diagnostic.path} in {output.path}",
                "another lp__",
                "Give the outputs in the order of the diagnostic files.",
            )
        # Densities of draws alike at −12,346 in six digits: an unbounded parameter is itself in
        # both files.
        for name in output.table.columns.intersection(diagnostic.table.columns):
            one, other = (
                output.table[name].to_numpy(np.float64),
                diagnostic.table[name].to_numpy(np.float64),
            )
            tolerance = _SAME * np.abs(one).max(initial=0.0)
            same = np.abs(one - other) <= tolerance
            # Equal once sorted: the same draws in another order. A constrained parameter has other
            # values in the two files, and is no fault.
            if not same.all() and (np.abs(np.sort(one) - np.sort(other)) <= tolerance).all():
                raise InputError(
                    _WHERE,
                    f"the rows of {output.path} in the order of those of {diagnostic.path}",
                    f"another order of {name}, first at row {int(np.argmin(same))}",
                    "Give the files as CmdStan wrote them, both thinned alike.",
                )
    return {name: values for name, values in _stack(chains).items() if name not in STATISTICS}
