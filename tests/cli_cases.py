"""What a run of the command line leaves, and how a refusal looks."""

from typing import NamedTuple


class Done(NamedTuple):
    """Exit code, stdout and stderr of one run; see the fixture `run`."""

    code: int
    out: str
    err: str


def refused(done: Done, *words: str) -> bool:
    """Whether the run ended in one line on stderr, with these words, and nothing on stdout."""
    return (
        done.code == 2
        and done.out == ""
        and done.err.startswith("mcmcpost: error: ")
        and done.err.count("\n") == 1
        and all(word in done.err for word in words)
    )
