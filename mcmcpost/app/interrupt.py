"""Signals that end the program at once, whatever it is computing."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mcmcpost.core.runtime import remove_unfinished

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C, `kill`, and a terminal that is closed."""

CLEAR_LINE = "\r\x1b[K"

SETTLING = 0.1
"""Seconds for writes of other threads to end that have begun: they hold the stream as it was."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process with code 128 + number at a signal of `ENDING`, after removing what is half
    written.

    Python runs handlers between two instructions of its main thread, which compilations and
    computations of XLA can hold apart for minutes, and a KeyboardInterrupt may unwind through
    threads that still use what it frees. Python's C handler, however, writes the number into a
    socket at once, and a thread that waits there ends the process. Signals that are ignored, as by
    ``nohup``, stay ignored.
    """
    inner, outer = socket.socketpair()
    outer.setblocking(False)
    descriptor = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)
    caught = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda *_: None) for number in caught}
    watch = threading.Thread(target=_watch, args=(inner,), daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        outer.close()
        watch.join()
        inner.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _watch(inner: socket.socket) -> None:
    for number in iter(lambda: inner.recv(1), b""):
        if number[0] in ENDING:
            _leave(number[0])


def _leave(number: int) -> None:
    try:
        # The main thread may hold the locks of Python's streams; what else writes there must not
        # follow the last line.
        last = f"{CLEAR_LINE if os.isatty(2) else ''}mcmcpost: interrupted\n"
        terminal = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        threading.Event().wait(SETTLING)
        os.write(terminal, last.encode())
        remove_unfinished()
    finally:
        os._exit(128 + number)
