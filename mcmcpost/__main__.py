"""``python -m mcmcpost``: the command line where the program `mcmcpost` is not on PATH."""

from mcmcpost.app import main

if __name__ == "__main__":
    main()
