"""Shared fixtures. Keys come from the test's own name, so that no test moves another's numbers."""

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

# its threads spin against XLA's and the other workers'
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# most of the time goes into compiling
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import jaxtyping
import numpy as np
import pytest
from cli_cases import Done

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

jaxtyping.install_import_hook("mcmcpost", "beartype.beartype")


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs with pytest's own cache: the slow tests use many of the others', a
    second run all."""
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the tests on other samplers' packages alone where they are deselected: importing those
    takes seconds."""
    return (
        True
        if collection_path.name.startswith("test_interop_")
        and "not interop" in config.option.markexpr
        else None
    )


@pytest.fixture(scope="module", autouse=True)
def few_programs() -> Iterator[None]:
    """Forget compiled programs before they take all memory maps that Linux allows a process
    (65,530): XLA crashes then.

    What is needed again is read from the cache of `pytest_configure`.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return zlib.crc32(request.node.nodeid.split("/")[-1].encode())


@pytest.fixture
def key(seed: int) -> jax.Array:
    return jax.random.key(seed)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave types and shapes unchecked: for hundreds of replications of calls that other tests make
    with checks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def rank_promotion() -> Iterator[None]:
    """Allow it: NumPyro's and BlackJAX's own code promotes ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Done]:
    """Run the program in this process, from an empty folder, without the user's compilation
    cache."""
    from mcmcpost.app import command_line as cli

    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr("mcmcpost.app.edge.cache_directory", lambda: None)
    monkeypatch.delenv("MCMCPOST_DEBUG", raising=False)

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["mcmcpost", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.run()
        captured = capsys.readouterr()
        return Done(stop.value.code, captured.out, captured.err)

    return run
