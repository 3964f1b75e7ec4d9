"""Checkpoints: the whole of what was stored, or one error that says what the file is."""

import numpy as np
import pytest

from mcmcpost import InputError
from mcmcpost.ladders.sampling import load_checkpoint, save_checkpoint

STATE = [np.arange(6.0).reshape(3, 2), np.array(7), np.array([1, 2, 3], np.uint32)]
RECORDS = {"draw": np.linspace(0, 1, 8).reshape(4, 2), "work": np.array([5, 6])}
SETTINGS = {"key": [0, 1], "temperatures": [0.0, 0.5, 1.0], "exchange": None}


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "run.checkpoint"
    save_checkpoint(place, 12, STATE, RECORDS, SETTINGS)
    return place


def test_what_was_stored_comes_back(path):
    found = load_checkpoint(path, SETTINGS)
    assert found.step == 12
    for got, wanted in zip(
        (*found.state, *found.records.values()), (*STATE, *RECORDS.values()), strict=True
    ):
        np.testing.assert_array_equal(got, wanted, strict=True)
    assert list(found.records) == list(RECORDS)
    assert load_checkpoint(path.with_name("none"), SETTINGS) is None


def test_what_a_killed_writer_left_is_replaced(path):
    path.with_name(".run.checkpoint.part").write_bytes(b"half")
    save_checkpoint(path, 13, STATE, RECORDS, SETTINGS)
    assert load_checkpoint(path, SETTINGS).step == 13
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("share", np.linspace(0, 0.999, 12))
def test_any_damaged_byte_is_one_clear_error(path, share):
    content = path.read_bytes()
    path.write_bytes(flipped(content, int(share * len(content))))
    with pytest.raises(
        InputError,
        match=r"checkpoint: expected a file of this function at .*not the whole.*Remove it",
    ):
        load_checkpoint(path, SETTINGS)


@pytest.mark.parametrize("kind", ["empty", "short", "cut off", "text", "npz", "npy"])
def test_a_foreign_or_unfinished_file_is_one_clear_error(path, kind):
    content = path.read_bytes()
    match kind:
        case "npz":
            with path.open("wb") as file:
                np.savez(file, settings="{}", step=1)
        case "npy":
            with path.open("wb") as file:
                np.save(file, np.zeros(9))
        case _:
            path.write_bytes(
                {
                    "empty": b"",
                    "short": content[:20],
                    "cut off": content[:-1],
                    "text": b"hello\n" * 20,
                }[kind]
            )
    with pytest.raises(InputError, match="checkpoint: expected a file of this function at"):
        load_checkpoint(path, SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("key", [0, 2]), ("temperatures", [0.0, 0.6, 1.0]), ("exchange", 3), ("numpyro", "9")],
)
def test_a_checkpoint_of_another_run_says_what_differs(path, name, value):
    with pytest.raises(
        InputError, match=rf"checkpoint: expected the run that .* belongs to, got {name}=.*; there"
    ):
        load_checkpoint(path, {**SETTINGS, name: value})
