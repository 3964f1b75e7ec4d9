"""A command joins others where the environment says so."""

import jax
import pytest

from mcmcpost import InputError
from mcmcpost.app.edge import join_processes


@pytest.fixture
def joined(monkeypatch):
    """Return what `jax.distributed.initialize` is called with."""
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **given: calls.append(given))
    return calls


def test_a_command_alone_joins_nothing(joined, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    join_processes()
    assert joined == []


def test_a_cluster_says_how_many_or_the_environment_does(joined, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1234")
    join_processes()
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    join_processes()
    assert joined == [
        {"num_processes": None, "process_id": None},
        {"num_processes": 2, "process_id": 0},
    ]


@pytest.mark.parametrize("text", ["two", "-1", "1.5", ""])
def test_what_is_no_number_is_refused(joined, monkeypatch, text):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1234")
    monkeypatch.setenv("JAX_PROCESS_ID", text)
    with pytest.raises(InputError, match="JAX_PROCESS_ID: expected a whole number, got"):
        join_processes()
    assert joined == []
