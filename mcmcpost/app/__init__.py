"""The command line and the report: the only package that knows a plotting backend.

The names are listed in ``__init__.pyi`` and imported on first use, so that the program starts at
once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["main"]


def main() -> None:
    """Run the command line; a signal ends it at once, from here on."""
    from mcmcpost.app.interrupt import ended_by_signals

    with ended_by_signals():
        from mcmcpost.app.command_line import run

        run()
