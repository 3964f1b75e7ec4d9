"""What the program is doing, on a terminal, and for how long."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from mcmcpost._core.steps import listening

DELAY, INTERVAL = 2.0, 0.5
"""Seconds after which a phase is shown, and after which its clock is drawn again."""


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the seconds since now. They are told and recorded, and nothing depends on them."""
    started = time.monotonic()
    return lambda: time.monotonic() - started


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Show a title, the step and the time since on a terminal while the block runs, if it takes long; not in a pipe."""
    done = threading.Event()
    with tqdm(desc=title, bar_format="{desc} {elapsed}", disable=None, delay=DELAY, leave=False) as bar:
        if bar.disable:
            yield
            return
        clock = threading.Thread(target=_tick, args=(bar, done), daemon=True)
        clock.start()
        try:
            with listening(lambda step: bar.set_description_str(f"{title}: {step}", refresh=False)):
                yield
        finally:
            done.set()
            clock.join()


def _tick(bar: tqdm, done: threading.Event) -> None:
    while not done.wait(INTERVAL):
        bar.update(0)  # unlike refresh, it waits for the delay
