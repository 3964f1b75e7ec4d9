"""The examples that the package brings: model files, by their names on the command line, and a
small trace."""

from pathlib import Path
from typing import TYPE_CHECKING

from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.runtime import did_you_mean

if TYPE_CHECKING:
    import xarray

FOLDER = Path(__file__).parent


def load_example(name: str) -> "xarray.DataTree":
    """Return a trace that the package brings: draws of a posterior, with scores and log densities.

    ``"lotka_volterra"``: 4 chains of 250 draws of NUTS, eight parameters of the hare–lynx counts of
    1900–1920, made by ``mcmcpost sample lotka-volterra --option priors=stan --draws 250``; the log
    likelihoods were left out.

    Parameters
    ----------
    name : of the example, with ``-`` or ``_``.

    Raises
    ------
    ValueError : there is no such example; the message names those that there are.

    Examples
    --------
    >>> mp.load_example("lotka_volterra").sample_stats.gradient.shape
    (4, 250, 8)
    """
    from mcmcpost.trees import load_tree

    if not isinstance(name, str):
        raise InputTypeError(
            "load_example",
            "`name` to be a string",
            type(name).__name__,
            "Such as 'lotka_volterra'.",
        )
    traces = {path.stem: path for path in sorted(FOLDER.glob("*.nc"))}
    if (stem := _stem(name)) not in traces:
        cure = f"{did_you_mean(stem, traces)}A file of yours is read by load_tree."
        raise InputError("load_example", f"`name` among {', '.join(traces)}", repr(name), cure)
    return load_tree(traces[stem])


def named_model(source: Path) -> Path:
    """Return the model file that a name on the command line stands for, as ``lotka-volterra``; else
    `source` itself.

    What is there by that name in the current folder comes first, and so does whatever has a folder
    or a suffix.
    """
    if source.exists() or source.suffix or source.name != str(source):
        return source
    # The wheel has the files of models/ in this folder; a clone has them where they are edited.
    folders = (FOLDER, FOLDER.parents[1] / "models")
    files = [file for folder in folders for file in folder.glob("[!_]*.py")]
    shipped = {file.stem: file for file in reversed(files) if file.stem.isidentifier()}
    stem = _stem(source.name)
    if stem not in shipped and (meant := did_you_mean(stem, shipped)):
        cure = f"{meant}Check the path."
        raise InputError("Model", "a file or the name of a shipped model", repr(source.name), cure)
    return shipped.get(stem, source)


def _stem(name: str) -> str:
    return name.replace("-", "_")
