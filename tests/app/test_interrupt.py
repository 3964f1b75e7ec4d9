"""Ctrl-C, `kill` and a closed terminal end the program at once, with nothing half written."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

import mcmcpost as mp
from mcmcpost.core import runtime

WAITING = """
import signal, sys, threading
from pathlib import Path
from mcmcpost.core.runtime import written_beside
from mcmcpost.app.interrupt import ended_by_signals

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN if sys.argv[1] == "ignored" else signal.SIG_DFL)
one, other = written_beside(Path("trace.nc")), written_beside(Path("trace.zarr"))
with ended_by_signals(), one as file, other as folder:
    file.write_text("half")
    folder.mkdir()
    (folder / "zarr.json").write_text("half")
    print("ready", flush=True)
    if sys.argv[1] == "ignored":
        input()
    else:
        threading.Event().wait()  # as a computation that never comes back
print("done")
"""


def start(tmp_path, how):
    return subprocess.Popen(
        [sys.executable, "-c", WAITING, how],
        cwd=tmp_path,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_removes_what_is_half_written(tmp_path, number):
    with start(tmp_path, "waits") as process:
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert process.stderr.read() == "mcmcpost: interrupted\n"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_still_written_to_is_removed_until_it_is_gone(tmp_path, monkeypatch):
    rmtree, calls = shutil.rmtree, []

    def interfered(place, **options):
        rmtree(place, **options)
        calls.append(place)
        if len(calls) < 4:  # another thread writes its next chunk
            place.mkdir()
            (place / "c").write_text("chunk")

    with runtime.written_beside(tmp_path / "trace.zarr") as folder:
        folder.mkdir()
        monkeypatch.setattr(shutil, "rmtree", interfered)
        runtime.remove_unfinished()
        assert not folder.exists()
        assert runtime._RENAMING.locked()  # so that no other thread gives it its final name
        runtime._RENAMING.release()
    assert len(calls) == 4


CHATTERING = """
import os, signal, threading
from mcmcpost.app.interrupt import ended_by_signals

def chatter():
    while True:
        os.write(2, b".")

signal.signal(signal.SIGINT, signal.SIG_DFL)
with ended_by_signals():
    for _ in range(4):
        threading.Thread(target=chatter, daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()
"""


def test_nothing_is_written_after_the_last_line(tmp_path):
    with (tmp_path / "err").open("wb") as err:
        command = [sys.executable, "-c", CHATTERING]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err) as process:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
    assert (tmp_path / "err").read_bytes().endswith(b"mcmcpost: interrupted\n")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    with start(tmp_path, "ignored") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate("\n")
    assert (process.returncode, out, err) == (0, "done\n", "")


PROGRAM = "from mcmcpost.app import main; main()"


OWN_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it in its background jobs
"""


def in_terminal(cwd, program, *arguments, interrupted_after=None):
    """Run Python in a terminal of its own, type Ctrl-C after some seconds, and return code and
    output."""
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    command = [sys.executable, "-c", OWN_TERMINAL + program, *arguments]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
    with subprocess.Popen(command, cwd=cwd, start_new_session=True, **streams) as process:
        os.close(inside)
        if interrupted_after is not None:
            time.sleep(interrupted_after)
            os.write(terminal, b"\x03")
        output = b""
        try:
            while chunk := os.read(terminal, 65536):
                output += chunk
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(terminal)
    return process.returncode, output.replace(b"\r\n", b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.5, 2.5])
@pytest.mark.parametrize(
    "command",
    [
        ["reduce", "trace.nc", "-o", "out.nc"],
        ["sample", "model.py", "-o", "out.nc"],
        ["evidence", "model.py", "-o", "out.nc"],
    ],
)
def test_ctrl_c_in_a_terminal(tmp_path, monkeypatch, command, delay):
    # nothing compiled yet: both take more than that
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cwd"
    folder.mkdir()
    # no polynomial is exact: kernels are tried
    draws = np.log(np.random.default_rng(0).gamma(3.0, size=(4, 500, 8)))
    mp.save_tree(mp.from_arrays(draws, 3.0 - np.exp(draws)), folder / "trace.nc")
    model = "import numpyro\nfrom numpyro.distributions import Normal\n"
    model += "def model(y): numpyro.sample('y', Normal(numpyro.sample('x', Normal())), obs=y)\n"
    (folder / "model.py").write_text(model + "def data(): return {'y': 0.3}\n")
    code, output = in_terminal(folder, PROGRAM, *command, interrupted_after=delay)
    assert (code, output[-22:]) == (130, b"mcmcpost: interrupted\n")
    assert not (folder / "out.nc").exists()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


PHASES = """
import time
from mcmcpost.core.runtime import say_step
from mcmcpost.app import edge as progress
say_step("nobody listens")
progress.DELAY, progress.INTERVAL = 0.1, 0.05
with progress.phase("a short one"):
    pass
with progress.phase("a long one"):
    time.sleep(0.5)
    say_step("step two")
    time.sleep(0.3)
print("done")
"""


@pytest.mark.slow
def test_a_phase_that_takes_long_is_shown_on_a_terminal_and_cleared(tmp_path):
    code, output = in_terminal(tmp_path, PHASES)
    assert code == 0
    assert b"a long one 00:00" in output
    assert b"a long one: step two 00:00" in output
    assert b"a short one" not in output
    assert output.endswith(b"\rdone\n")


@pytest.mark.slow
def test_a_pipe_has_no_progress():
    done = subprocess.run(
        [sys.executable, "-c", PHASES], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
