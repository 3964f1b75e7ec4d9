"""Shared fixtures. Keys come from the test's own name, so that no test moves another's numbers."""

import os
import zlib

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin against XLA's and the other workers'

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

install_import_hook("mcmcpost", "beartype.beartype")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return zlib.crc32(request.node.nodeid.split("/")[-1].encode())


@pytest.fixture
def key(seed: int) -> jax.Array:
    return jax.random.key(seed)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
