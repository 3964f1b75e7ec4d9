"""The command line, thin over the public functions, with all that only it uses."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; a signal ends it at once, from here on."""
    from mcmcpost.cli.interrupt import ended_by_signals

    with ended_by_signals():
        from mcmcpost.cli.app import main as run

        run()
