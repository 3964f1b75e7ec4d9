"""Model files: Python modules with ``model`` and, optionally, ``data``, ``quantities`` and
``init``, loaded by path."""

import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mcmcpost.app.edge import MODULE_PREFIX
from mcmcpost.core.arguments import check_function, missing_file
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.runtime import did_you_mean
from mcmcpost.trees.convention import check_names
from mcmcpost.trees.integrands import as_numbers
from mcmcpost.trees.stan import stan_model


class ModelFile(NamedTuple):
    """The contract of a model file.

    path : where it was read, absolute.
    model : NumPyro program.
    data : returns the keyword arguments of `model`, or a tuple of its positional ones; none where
        the file has no ``data``.
    quantities : one constrained draw (a dict of arrays) -> named scalars, or None.
    init : returns constrained starting values by site, or None.
    """

    path: Path
    model: Callable[..., Any]
    data: Callable[..., Any]
    quantities: Callable[[dict[str, Any]], Mapping[str, Any]] | None
    init: Callable[..., Mapping[str, Any]] | None

    def arguments(
        self, options: Mapping[str, object] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of `model` under `options`."""
        # A misspelt option would leave the default in force, without a word.
        self._refuse_unknown(options or {})
        values = self._call("data", self.data, options or {})
        if not isinstance(values, Mapping | tuple):
            raise InputTypeError(
                f"Model file {self.path}",
                "`data()` to return a dict of keyword arguments or a tuple of positional ones "
                "for `model`",
                type(values).__name__,
                "Return {} if `model` takes no arguments.",
            )
        args, kwargs = (values, {}) if isinstance(values, tuple) else ((), dict(values))
        # Bound before anything runs: a missing argument would come out of NumPyro's handlers.
        signature = inspect.signature(self.model)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            expected = f"`data()` to return the arguments of `model{signature}`"
            raise InputTypeError(
                f"Model file {self.path}", expected, str(error), "Name each argument once."
            ) from error
        return args, kwargs

    def start(self, options: Mapping[str, object] | None = None) -> dict[str, Any] | None:
        """Return the constrained starting values under `options`, or None if the file gives
        none."""
        return (
            None
            if self.init is None
            else self._dict_of("init()", self._call("init", self.init, options or {}))
        )

    def named(self, draw: dict[str, Any]) -> dict[str, jax.Array]:
        """Return the ``quantities`` of one constrained draw by name, none if the file has none."""
        if self.quantities is None:
            return {}
        where, values = (
            f"Model file {self.path}",
            self._dict_of("quantities(draw)", self.quantities(draw)),
        )
        return {
            name: as_numbers(where, f"quantities(draw)[{name!r}]", v, jnp.asarray)
            for name, v in values.items()
        }

    def _call(self, name: str, function: Callable[..., Any], options: Mapping[str, object]) -> Any:
        accepted = _accepted(function)
        # `data()` and `init()` share the options, and each takes what it has an argument for.
        chosen = {
            option: value
            for option, value in options.items()
            if None in accepted or option in accepted
        }
        signature = inspect.signature(function)
        try:
            signature.bind(**chosen)
        except TypeError as error:
            cure = "Give it a default, or its value with --option NAME=VALUE."
            expected = f"options for the arguments of `{name}{signature}`"
            raise InputError(f"Model file {self.path}", expected, f"none: {error}", cure) from error
        for option, value in chosen.items():
            default = signature.parameters[option].default if option in accepted else None
            # A text in place of a number fails within JAX, and "False" for True counts as true.
            if isinstance(default, int | float) and isinstance(value, str):
                expected = f"a number for the option {option} of `{name}`, by default {default}"
                cure = f"For example --option {option}={float(default):g}; true is 1, false is 0."
                raise InputError(f"Model file {self.path}", expected, repr(value), cure)
        return function(**chosen)

    def _dict_of(self, function: str, values: object) -> dict[str, Any]:
        if not isinstance(values, Mapping):
            raise InputTypeError(
                f"Model file {self.path}",
                f"`{function}` to return a dict",
                type(values).__name__,
                "Name each value.",
            )
        # Values become variables of the tree, which some names cannot be.
        check_names(f"Model file {self.path}", dict.fromkeys(values, ()))
        return dict(values)

    def _refuse_unknown(self, options: Mapping[str, object]) -> None:
        accepted = _accepted(self.data) | (_accepted(self.init) if self.init else set())
        unknown = [] if None in accepted else sorted(set(options) - accepted)
        if unknown:
            raise InputError(
                f"Model file {self.path}",
                f"options among {sorted(name for name in accepted if name) or 'none'}",
                unknown,
                did_you_mean(unknown[0], accepted)
                + "Options are the arguments of `data()` and `init()`.",
            )


def load_model_file(path: str | Path) -> ModelFile:
    """Import the Python file at `path` and return its contract.

    The file is executed, as by an import: only load files that you trust. Its folder is importable
    while it loads, so that a model may be split over several files.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is not a Python module, or lacks a callable ``model``, or ``data`` where `model` needs
        arguments.
    TypeError
        ``quantities`` does not take one argument.
    """
    file = Path(os.path.realpath(Path(path).expanduser()))
    if not file.is_file():
        raise missing_file("Model file", "an existing Python file", Path(path))
    module = _execute(file)
    model = _function(module, file, "model")
    loaded = ModelFile(
        file,
        model,
        # A model without arguments needs no data(); with arguments its absence is told by name.
        _function(module, file, "data")
        if hasattr(module, "data") or _needs_arguments(model)
        else _no_data,
        _function(module, file, "quantities") if hasattr(module, "quantities") else None,
        _function(module, file, "init") if hasattr(module, "init") else None,
    )
    cure = "Its argument is one draw, a dict of arrays."
    check_function(f"Model file {file}", "quantities", loaded.quantities, 1, cure, optional=True)
    return loaded


class LoadedModel(NamedTuple):
    """What `attach_scores` and `bridge_evidence` take for a model, its arguments, and of a Python
    file its contract."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    file: ModelFile | None


def load_program(path: Path, texts: list[str] | None) -> LoadedModel:
    """Return the model of a model file under the options NAME=VALUE, or a compiled Stan program,
    NAME.stan.

    A Stan program has one option, ``data``, the JSON file of its data.
    """
    options = parse_options(texts or [])
    if path.suffix != ".stan":
        file = load_model_file(path)
        return LoadedModel(file.model, *file.arguments(options), file)
    if unknown := sorted(set(options) - {"data"}):
        raise InputError(
            f"Stan program {path}",
            "the option data alone",
            ", ".join(unknown),
            "Put it into the data.",
        )
    data = None if "data" not in options else Path(str(options["data"])).expanduser()
    return LoadedModel(stan_model(path.expanduser(), data), (), {}, None)


def _execute(file: Path) -> ModuleType:
    # Two files named model.py are two modules; the prefix is how `model_file_fault` knows their
    # frames.
    name = f"{MODULE_PREFIX}{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None:
        cure = "A trace ends in .nc or .zarr."
        if file.suffix == ".stan":
            cure = (
                "CmdStan samples it: then mcmcpost reduce output_*.csv, or evidence --model, but "
                "not --ladder."
            )
        raise InputError("Model file", "a Python file, NAME.py", str(file), cure)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and NamedTuples look their module up while it runs
    # For modules beside the file, and only while it loads: another `utils` must not be found later.
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, UnicodeDecodeError) as error:
        del sys.modules[name]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(
            f"Model file {file}{line}",
            "valid Python",
            f"{message}",
            "Run it with python to see more.",
        ) from error
    # Also an exit: a module that was half executed must not be found by the next import.
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.parent))
    return module


def _function(module: ModuleType, file: Path, name: str) -> Callable[..., Any]:
    value = getattr(module, name, None)
    if not callable(value):
        got = (
            f"`{name}` of type {type(value).__name__}" if hasattr(module, name) else f"no `{name}`"
        )
        cure = (
            "A model file defines model(...), data() for its arguments, and optionally "
            "quantities(draw) and init()."
        )
        # A model file is a NumPyro program; PyMC's model is an object that Python code has.
        if type(value).__module__.partition(".")[0] == "pymc":
            got = f"a {type(value).__name__} of PyMC"
            cure = (
                "Attach its scores in Python, tree = mp.attach_scores(tree, model), save the tree, "
                "and leave --model out."
            )
        raise InputError(f"Model file {file}", f"a function `{name}`", got, cure)
    return value


def _no_data() -> dict[str, Any]:
    return {}


def _needs_arguments(model: Callable[..., Any]) -> bool:
    try:
        inspect.signature(model).bind()
    except TypeError:
        return True
    return False


def _accepted(function: Callable[..., Any]) -> set[str | None]:
    """Return the argument names of `function`; None is among them if it accepts any name."""
    parameters = inspect.signature(function).parameters.values()
    return {
        None if p.kind is p.VAR_KEYWORD else p.name for p in parameters if p.kind not in _POSITIONAL
    }


_POSITIONAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)


def parse_options(texts: list[str]) -> dict[str, object]:
    """Return ``["name=value", ...]`` as a dict; values that are Python numbers become numbers,
    others stay text."""
    options: dict[str, object] = {}
    for text in texts:
        name, _, value = (side.strip() for side in text.partition("="))
        # A value that is missing, as of a variable of the shell that is not set, is no text.
        if not value or not name.isidentifier() or name in options:
            raise InputError(
                "Option", "NAME=VALUE, each name once", repr(text), "For example priors=stan."
            )
        options[name] = _number(value)
    return options


def _number(text: str) -> int | float | str:
    # Whole numbers first, as counts and seeds.
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
