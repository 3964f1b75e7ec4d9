"""Errors about the input of a user."""


class InputError(ValueError):
    """An argument of a user has a value that cannot be used.

    The message says where, what was expected, what was got, and the cure: four arguments, or one sentence of all.
    """

    def __init__(self, where: str, expected: str | None = None, got: object = None, cure: str = "") -> None:
        super().__init__(where if expected is None else fault(where, expected, got, cure))


class InputTypeError(TypeError):
    """An argument of a user has a type that cannot be used; the arguments are those of `InputError`."""

    def __init__(self, where: str, expected: str | None = None, got: object = None, cure: str = "") -> None:
        super().__init__(where if expected is None else fault(where, expected, got, cure))


class MissingPackageError(ImportError):
    """An optional package is not installed; the arguments are those of `InputError`."""

    def __init__(self, where: str, expected: str | None = None, got: object = None, cure: str = "") -> None:
        super().__init__(where if expected is None else fault(where, expected, got, cure))


def fault(where: str, expected: str, got: object, cure: str) -> str:
    """Return a message that says where, what was expected, what was got, and the cure."""
    return f"{where}: expected {expected}, got {got}. {cure}"
