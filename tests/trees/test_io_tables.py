"""Tables of draws: plain CSV, and CmdStan's diagnostic files, which CmdStan 2.37.0 wrote
(tests/data/README.md)."""

import json

import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from cli_cases import refused
from interop_cases import DATA

import mcmcpost as mp
from mcmcpost.trees import read_trace

DIAGNOSTICS = [DATA / f"cmdstan_diagnostic_{chain}.csv" for chain in (1, 2)]
OUTPUTS = [DATA / f"cmdstan_output_{chain}.csv" for chain in (1, 2)]


@pytest.fixture
def table(rng):
    """Exact draws of three unconstrained parameters, one quantity of theirs, rows out of order."""
    x = rng.normal(size=(400, 3))
    columns = {"chain": np.repeat([1, 2, 3, 4], 100), "draw": np.tile(np.arange(100), 4)}
    columns |= {"log_s": x[:, 0], "theta[0]": x[:, 1], "theta[1]": x[:, 2], "s": np.exp(x[:, 0])}
    columns |= {
        "gradient_theta[1]": -x[:, 2],
        "gradient_log_s": -x[:, 0],
        "gradient_theta[0]": -x[:, 1],
    }
    return pandas.DataFrame(columns).sample(frac=1.0, random_state=1)


def written(table, path, **options):
    table.to_csv(path, **{"index": False} | options)
    return path


@pytest.mark.parametrize("index", [False, True])
def test_a_table_is_a_trace(table, tmp_path, index):
    tree = mp.load_tree(written(table, tmp_path / "draws.csv", index=index))
    trace = read_trace(tree)
    ordered = table.sort_values(["chain", "draw"])
    assert trace.names == ("theta[1]", "log_s", "theta[0]")
    np.testing.assert_allclose(trace.draws[..., 1].ravel(), ordered["log_s"], rtol=1e-14)
    np.testing.assert_array_equal(trace.scores, -trace.draws)
    assert tree["posterior"]["theta"].shape == (4, 100, 2)
    np.testing.assert_array_equal(tree["posterior"]["theta"][..., 1], trace.draws[..., 0])
    assert set(tree["posterior"].data_vars) == {"log_s", "theta", "s"}


@pytest.mark.slow
def test_a_table_becomes_a_report_in_one_command(run, table, tmp_path):
    path = written(table, tmp_path / "draws.csv")
    done = run("report", path, "-o", "report.html", "--method", "zv2")
    assert done.code == 0, done.err
    assert done.out.endswith("scores pass\n")
    assert run("reduce", path, "--method", "zv2", "-o", "out.nc").code == 0
    assert refused(run("reduce", path, "-o", "out.csv"), ".nc or .zarr")


def test_names_of_other_programs(table, tmp_path):
    renamed = table.rename(
        columns={"chain": ".chain", "draw": ".draw", "theta[0]": "theta.1", "theta[1]": "theta.2"}
    )
    renamed = renamed.drop(columns=[name for name in renamed if name.startswith("gradient_")])
    tree = mp.load_tree(written(renamed, tmp_path / "draws.csv"))
    assert tree["posterior"]["theta"].shape == (4, 100, 2)
    scored = mp.attach_scores(
        mp.from_arrays(tree["posterior"]["theta"], -tree["posterior"]["theta"]),
        logdensity_fn=lambda x: -0.5 * x @ x,
    )
    np.testing.assert_allclose(read_trace(scored).scores, -read_trace(scored).draws)


def test_without_chain_the_rows_are_one_in_order(table, tmp_path):
    rows = table.drop(columns=["chain", "draw"])
    trace = read_trace(mp.load_tree(written(rows, tmp_path / "draws.csv")))
    np.testing.assert_allclose(trace.draws[0, :, 1], rows["log_s"], rtol=1e-14)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.rename(columns={"log_s": "lns"}), "none for log_s"),
        (lambda t: t[[name for name in t if name.startswith("gradient_")]], "none for theta"),
        (lambda t: pandas.concat([t.iloc[1:], t.iloc[1:2]]), "twice"),
        (lambda t: t.assign(s="a"), "other values in s"),
        (lambda t: t.iloc[:0], "other values|no row"),
        (lambda t: t.assign(lp__=0.0, g_log_s=0.0), "those of CmdStan's diagnostic files"),
        (lambda t: t.assign(log_s=np.nan), "finite draws"),
    ],
)
def test_bad_tables(table, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        mp.load_tree(written(change(table), tmp_path / "draws.csv"))


def test_chains_of_other_lengths_are_cut_to_the_shortest(table, tmp_path):
    last = (table.chain == table.chain.max()) & (table.draw >= table.draw.max() - 1)
    path, least = written(table[~last], tmp_path / "draws.csv"), len(table) // 4 - 2
    words = rf"The first {least} of each are kept, and 6 of {len(table) - 2} draws .*moments"
    with pytest.warns(UserWarning, match=words):
        tree = mp.load_tree(path)
    whole = read_trace(mp.load_tree(written(table, tmp_path / "whole.csv")))
    np.testing.assert_array_equal(read_trace(tree).draws, whole.draws[:, :least])
    np.testing.assert_array_equal(read_trace(tree).scores, whole.scores[:, :least])


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1,2,3,4\n")
    for name in ("empty.csv", "ragged.csv"):
        with pytest.raises(ValueError, match=f"a table with a header in .*{name}"):
            mp.load_tree(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="existing file"):
        mp.load_tree(tmp_path / "none.csv")


def prophet(x):
    """Prophet's Stan program with a linear trend, on (k, m, δ, log σ, β); constants left out, as
    `~` does."""
    data = {
        name: jnp.asarray(value, jnp.float64)
        for name, value in json.loads((DATA / "cmdstan_data.json").read_text()).items()
    }
    k, m, delta, log_s, beta = x
    after = data["t"] >= data["t_change"][0]
    trend = (k + after * delta) * data["t"] + m - after * data["t_change"][0] * delta
    s = jnp.exp(log_s)
    residual = (data["y"] - trend - data["X"][:, 0] * beta) / s
    prior = -(k**2 + m**2) / 50 - jnp.abs(delta) / data["tau"] - 2 * s**2 - beta**2 / 2
    return prior + log_s - residual @ residual / 2 - len(residual) * log_s


@pytest.mark.slow
def test_cmdstan_wrote_the_gradients_of_the_potential():
    tree = mp.from_cmdstan(DIAGNOSTICS, OUTPUTS)
    trace = read_trace(tree)
    assert trace.names == ("k", "m", "delta.1", "sigma_obs", "beta.1")
    # attach_scores compares with lp__ as well.
    again = read_trace(mp.attach_scores(tree, logdensity_fn=prophet))
    np.testing.assert_allclose(trace.scores, again.scores, rtol=1e-5, atol=1e-4)
    posterior = tree["posterior"]
    np.testing.assert_allclose(
        np.log(posterior["sigma_obs"]), trace.draws[..., 3], rtol=1e-7, atol=1e-7
    )
    assert posterior["trend"].shape == (2, 100, 8)
    assert tree["sample_stats"]["diverging"].dtype == bool
    attrs = tree["sample_stats"].attrs
    assert (attrs["stan_version"], attrs["stan_model"]) == ("2.37.0", "prophet_model")
    table = mp.summary(tree, ["k", "sigma_obs"], method="zv2")
    assert table.loc["sigma_obs", "gain"] > 1


def test_the_time_of_cmdstan_is_that_of_its_slowest_chain(tmp_path):
    assert mp.from_cmdstan(DIAGNOSTICS, OUTPUTS).attrs["sampling_time"] == 0.097
    untimed = tmp_path / "untimed.csv"
    untimed.write_text(DIAGNOSTICS[0].read_text().replace("(Total)", ""))
    assert "sampling_time" not in mp.from_cmdstan([untimed, DIAGNOSTICS[1]]).attrs


def test_cmdstan_without_outputs_keeps_the_unconstrained_parameters(tmp_path):
    tree = mp.from_cmdstan(DIAGNOSTICS)
    assert set(tree["posterior"].data_vars) == {"k", "m", "delta", "sigma_obs", "beta"}
    assert (tree["posterior"]["sigma_obs"] < 0).any()
    back = mp.load_tree(mp.save_tree(tree, tmp_path / "stan.nc"))
    assert back.identical(tree)
    one = read_trace(mp.from_cmdstan(DIAGNOSTICS[0], OUTPUTS[0]))
    np.testing.assert_array_equal(one.scores, read_trace(tree).scores[:1])


def edited(tmp_path, change, source=DIAGNOSTICS[0]):
    path = tmp_path / "edited.csv"
    path.write_text(change(source.read_text()))
    return path


def test_saved_warmup_is_left_out(tmp_path):
    text = DIAGNOSTICS[0].read_text()
    first = next(line for line in text.splitlines() if line[:1] not in "#l")
    warm = "\n".join([first] * 250) + "\n"  # 500 iterations thinned by 2
    longer = text.replace("save_warmup = false", "save_warmup = true").replace(
        first + "\n", warm + first + "\n", 1
    )
    trace = read_trace(mp.from_cmdstan(edited(tmp_path, lambda _: longer)))
    np.testing.assert_array_equal(trace.draws, read_trace(mp.from_cmdstan(DIAGNOSTICS)).draws[:1])


def test_a_file_may_end_in_a_comment_without_a_line_break(tmp_path):
    assert DIAGNOSTICS[0].read_text().rstrip().splitlines()[-1].startswith("#")
    trace = read_trace(mp.from_cmdstan(edited(tmp_path, str.rstrip)))
    np.testing.assert_array_equal(trace.draws, read_trace(mp.from_cmdstan(DIAGNOSTICS[0])).draws)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("g_", "h_"), r"columns g_NAME.*diagnostic_file"),
        (lambda text: text.replace("lp__", "log"), "a column lp__"),
        (
            lambda text: text.replace("k,m,", "m,k,").replace("g_k,g_m", "g_m,g_k"),
            "one order.* got k and m",
        ),
        (lambda text: text.replace("k,m,", "a,m,").replace("g_k", "g_a"), "the parameters k, m"),
        (lambda _: "", "a CSV of CmdStan"),
    ],
)
def test_bad_diagnostic_files(tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        mp.from_cmdstan([DIAGNOSTICS[1], edited(tmp_path, change)])


def test_bad_calls(tmp_path):
    with pytest.raises(ValueError, match="at least one file"):
        mp.from_cmdstan([])
    with pytest.raises(FileNotFoundError, match="existing file"):
        mp.from_cmdstan(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="as many outputs as diagnostic files"):
        mp.from_cmdstan(DIAGNOSTICS, OUTPUTS[:1])
    with pytest.raises(ValueError, match="in the order of the diagnostic files"):
        mp.from_cmdstan(DIAGNOSTICS, OUTPUTS[::-1])
    with pytest.raises(ValueError, match="columns g_NAME"):
        mp.from_cmdstan(OUTPUTS)


def test_rows_of_an_output_in_another_order_than_those_of_its_diagnostic_file_are_told(tmp_path):
    """Densities in six digits at −12,346 are the same for all draws; an unbounded parameter is
    not."""
    files = []
    for path in (DIAGNOSTICS[0], OUTPUTS[0]):
        head = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        at, rows = head[0].split(",").index("lp__"), [line.split(",") for line in head[1:]]
        for row in rows:
            row[at] = "-12346"
        rows = rows[1:] + rows[:1] if path == OUTPUTS[0] else rows
        files.append(tmp_path / path.name)
        files[-1].write_text("\n".join([head[0], *(",".join(row) for row in rows)]) + "\n")
    with pytest.raises(
        ValueError, match=r"got another order of \w+, first at row 0\. Give the files as CmdStan"
    ):
        mp.from_cmdstan(*files)


def test_elements_counted_from_one_keep_their_numbers(rng, tmp_path, recwarn):
    """And a log density is no parameter that lacks its gradient."""
    x = rng.normal(size=(400, 2))
    columns = {"theta[1]": x[:, 0], "theta[2]": x[:, 1], "lp__": -0.5 * (x**2).sum(axis=1)}
    columns |= {f"gradient_theta[{i + 1}]": -x[:, i] for i in range(2)}
    tree = mp.load_tree(written(pandas.DataFrame(columns), tmp_path / "draws.csv"))
    assert not recwarn.list
    found = mp.expectation(tree, method="plain")
    assert found.names == ("theta[1]", "theta[2]", "lp__")
    assert read_trace(tree).names == found.names[:2]
    np.testing.assert_allclose(found.mean[:2], x.mean(axis=0))


@pytest.mark.parametrize(
    ("sep", "decimal"), [(";", ","), (";", "."), ("\t", ","), ("\t", ".")], ids=repr
)
def test_tables_of_programs_with_a_decimal_comma(table, tmp_path, sep, decimal):
    found = mp.load_tree(written(table, tmp_path / "x.csv", sep=sep, decimal=decimal))
    same = mp.load_tree(written(table, tmp_path / "same.csv"))
    assert found.identical(same)
