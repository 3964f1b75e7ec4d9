"""Expressions of the draws, ``name=expression``, for the command line: parsed and checked, never
passed to ``eval``.

An expression is a function of one draw and is computed at every draw: ``theta[0] / theta[1]``, ``mu
> 0``, ``mean(theta)``, ``where(x > 1, log(x), 0)``. It may contain

- names of posterior variables, and of elements as the table prints them, in backquotes where they
  are no identifiers: ```prey[1912.2]```, ```theta[Choate]```;
- numbers, always taken as floats; ``+ - * / **``; indices ``theta[0]``, ``cov[0, -1]`` (after chain
  and draw), which are positions, or labels where whole numbers label the elements;
- comparisons, chained or not, which give 1 or 0; ``and or not``, ``& | ~`` between conditions only
  (so that ``a > 0 & b > 0``, which Python reads as ``a > (0 & b) > 0``, is refused instead of
  computed);
- ``exp log log1p expm1 sqrt abs sin cos tan tanh``, ``minimum(a, b)``, ``maximum(a, b)``,
  ``where(condition, a, b)``, ``sum(a)`` and ``mean(a)`` over the elements of one draw.

A NaN stays a NaN, also through comparisons and ``** 0``, so that it is reported and not counted as
"false". Invalid operations give NaN or infinity without warnings of NumPy; the status of the
quantity is then ``undefined``.
"""

import ast
import keyword
import operator
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mcmcpost.app.edge import check_distinct
from mcmcpost.core.errors import InputError
from mcmcpost.core.runtime import did_you_mean
from mcmcpost.trees.convention import check_names

type Values = Mapping[str, np.ndarray]

ARITHMETIC: dict[type[ast.operator], Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}

COMPARISONS: dict[type[ast.cmpop], Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

LOGIC: dict[type[ast.AST], Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.And: np.logical_and,
    ast.BitAnd: np.logical_and,
    ast.Or: np.logical_or,
    ast.BitOr: np.logical_or,
}

_UNARY = ("exp", "log", "log1p", "expm1", "sqrt", "abs", "sin", "cos", "tan", "tanh")

ELEMENTWISE: dict[str, tuple[int, Callable[..., np.ndarray]]] = {
    **{name: (1, getattr(np, name)) for name in _UNARY},
    "minimum": (2, np.minimum),
    "maximum": (2, np.maximum),
}

REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {"sum": np.sum, "mean": np.mean}

FUNCTIONS = (*ELEMENTWISE, *REDUCTIONS, "where")


def index_of(node: ast.Subscript) -> tuple[int, ...] | None:
    """Return the integers of the index ``value[i, j]``, or None if it contains anything else."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    indices = []
    for element in parts:
        negative = isinstance(element, ast.UnaryOp) and isinstance(element.op, ast.USub)
        number = element.operand if isinstance(element, ast.UnaryOp) and negative else element
        # `type … is` and not `isinstance`: True is an int.
        if not isinstance(number, ast.Constant) or type(number.value) is not int:
            return None
        indices.append(-number.value if negative else number.value)
    return tuple(indices) or None


class Evaluator(NamedTuple):
    """The evaluation of one expression. Every intermediate value has the two leading axes (c, n),
    or (1, 1).

    values : {variable: (c, n, ...)}.
    numbered : variables whose elements are named by whole numbers that are not their positions.
    quoted : the variable that an identifier stands for, where it was quoted.
    refuse : raises the error of a node.
    """

    values: Values
    numbered: Container[str]
    quoted: Mapping[str, str]
    refuse: Callable[[ast.AST, str], NoReturn]

    def run(self, tree: ast.expr) -> np.ndarray:
        """Return the values of `tree`, (c, n) or (c, n, p); invalid operations give NaN or infinity
        silently."""
        # The status says `undefined`, once for each quantity; NumPy would warn for each block of
        # draws.
        with np.errstate(all="ignore"):
            result = self.visit(tree)
        lead = result.shape[:2]
        # "p=1" is a constant of every draw.
        if lead == (1, 1):  # of numbers alone
            lead = next(iter(self.values.values())).shape[:2]
        if result.ndim > 3:
            self.refuse(
                tree, f"gives {result.ndim - 2} axes a draw (index it, or take sum or mean)"
            )
        # A copy: views of a broadcast array, or of the tree's own, must not be written to later.
        return np.broadcast_to(result, lead + result.shape[2:]).copy()

    def visit(self, node: ast.expr) -> np.ndarray:
        match node:
            case ast.Constant():
                # Two leading axes of length one stand for chains and draws, so that they broadcast.
                # The value was checked: an int or a float.
                return np.full((1, 1), float(node.value))  # type: ignore[arg-type]
            case ast.Name():
                return self.variable(node)
            case ast.Subscript():
                return self.element(node)
            case ast.UnaryOp():
                # `not a` is 1 − a: a NaN stays a NaN, where numpy.logical_not makes it 0.
                value = self.visit(node.operand)
                return (
                    value
                    if isinstance(node.op, ast.UAdd)
                    else -value
                    if isinstance(node.op, ast.USub)
                    else 1 - value
                )
            case ast.BinOp():
                both = self.visit(node.left), self.visit(node.right)
                kind = type(node.op)
                return self.apply(node, LOGIC[kind] if kind in LOGIC else ARITHMETIC[kind], *both)
            case ast.BoolOp():
                result, *others = map(self.visit, node.values)
                for other in others:
                    result = self.apply(node, LOGIC[type(node.op)], result, other)
                return result
            case ast.Compare():
                return self.compare(node)
            case ast.Call(func=ast.Name(id=name)):
                return self.call(node, name)
        raise TypeError(f"unchecked node {type(node).__name__}")

    def variable(self, node: ast.Name) -> np.ndarray:
        name = self.quoted.get(node.id, node.id)
        if name not in self.values:
            available = ", ".join(n if n.isidentifier() else f"`{n}`" for n in self.values)
            question = did_you_mean(name, self.values).strip()
            known = f"{available}; {question}" if question else available
            self.refuse(node, f"names {name!r}, which is not among the variables ({known})")
        return np.asarray(self.values[name], np.float64)

    def element(self, node: ast.Subscript) -> np.ndarray:
        index = index_of(node)
        if isinstance(node.value, ast.Name):
            name = self.quoted.get(node.value.id, node.value.id)
            # theta[1] of a table that counts from one is that element, and not the second: what a
            # person sees in the table is what may be written here.
            if name not in self.values or name in self.numbered:
                flat = f"{name}[{', '.join(map(str, index or ()))}]"
                if flat in self.values:
                    return np.asarray(self.values[flat], np.float64)
            if name in self.numbered:
                self.refuse(
                    node,
                    f"names no element of {name}, whose elements are named by their coordinates",
                )
        value = self.visit(node.value)
        where: tuple[Any, ...] = (slice(None), slice(None), *(index or ()))
        try:
            return value[where]
        except IndexError:
            self.refuse(
                node, f"has an index {index} outside the shape {value.shape[2:]} of one draw"
            )

    def compare(self, node: ast.Compare) -> np.ndarray:
        terms = [self.visit(term) for term in (node.left, *node.comparators)]
        # a < b < c is (a < b)·(b < c), as in Python.
        result = np.ones((1, 1))
        for op, left, right in zip(node.ops, terms[:-1], terms[1:], strict=True):
            result = self.apply(
                node, np.multiply, result, self.apply(node, COMPARISONS[type(op)], left, right)
            )
        return result

    def call(self, node: ast.Call, name: str) -> np.ndarray:
        arguments = [self.visit(argument) for argument in node.args]
        if name in REDUCTIONS:
            return REDUCTIONS[name](arguments[0], axis=tuple(range(2, arguments[0].ndim)))
        if name == "where":
            condition, yes, no = self.aligned(node, arguments)
            # An unused branch may be NaN, as the logarithm of a negative number: only the condition
            # decides.
            return np.where(np.isnan(condition), np.nan, np.where(condition != 0, yes, no))
        return self.apply(node, ELEMENTWISE[name][1], *arguments)

    def apply(
        self, node: ast.expr, function: Callable[..., np.ndarray], *values: np.ndarray
    ) -> np.ndarray:
        """Apply `function` element by element; a NaN in any argument gives NaN."""
        arguments = self.aligned(node, values)
        # NaN ** 0 is 1 and NaN > 0 is False in NumPy: failed draws would be counted.
        undefined = np.logical_or.reduce([np.isnan(argument) for argument in arguments])
        return np.where(undefined, np.nan, function(*arguments))

    def aligned(
        self, node: ast.expr, values: list[np.ndarray] | tuple[np.ndarray, ...]
    ) -> list[np.ndarray]:
        """Broadcast the axes of one draw against each other, leaving chain and draw in front."""
        rank = max(value.ndim for value in values)
        # NumPy aligns from the right: without padding a scalar (c, n) would meet the elements of a
        # vector (c, n, p) by its draws.
        padded = [v.reshape(v.shape[:2] + (1,) * (rank - v.ndim) + v.shape[2:]) for v in values]
        try:
            return list(np.broadcast_arrays(*padded))
        except ValueError:
            self.refuse(
                node,
                f"combines shapes of one draw that do not fit, {[v.shape[2:] for v in values]}",
            )


MAX_LENGTH = 1000

MAX_DEPTH = 50

_QUOTED = re.compile(r"`([^`]*)`")

_NAME = re.compile(r"[^\W\d][\w.\[\](), -]*")


class Expression(NamedTuple):
    """A checked expression; call it with {variable: (c, n, ...)} for its values, (c, n) or (c, n,
    p)."""

    text: str
    tree: ast.expr
    quoted: Mapping[str, str]

    def __call__(self, values: Values, numbered: Container[str] = ()) -> np.ndarray:
        return Evaluator(values, numbered, self.quoted, self.refuse).run(self.tree)

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        """Raise the error of `node`, with its place in the text."""
        plain, _ = _unquote(self.text)
        start = len(plain.encode()[: getattr(node, "col_offset", 0)].decode())  # ast counts bytes
        _refuse(self.text, start, why)


def parse_expression(text: str) -> tuple[str, Expression]:
    """Return the name and the checked expression of ``"name=expression"``.

    Raises
    ------
    ValueError
        `text` has no name, is not an expression, or contains what is not allowed; the message gives
        the position.
    """
    # "a == b" has no name: its body would begin with the second sign.
    name, separator, body = (side.strip() for side in text.partition("="))
    if not separator or not _NAME.fullmatch(name) or body.startswith("=") or not body:
        raise InputError(
            "Expression", "NAME=EXPRESSION", repr(text), 'For example --expect "ratio=a / b".'
        )
    return name, compile_expression(body)


def parse_expressions(texts: Sequence[str]) -> dict[str, Expression]:
    """Return the checked expressions of ``["name=expression", ...]`` by name, each name once."""
    named = [parse_expression(text) for text in texts]
    check_distinct("--expect", [name for name, _ in named], "names")
    # As those of a model file's quantities: they are names in trees.
    check_names("--expect", {name: () for name, _ in named})
    return dict(named)


def compile_expression(text: str) -> Expression:
    """Return the checked `Expression` of `text`."""
    # One line: positions in messages are those of what was typed.
    line = " ".join(text.splitlines()).strip()
    if len(line) > MAX_LENGTH:
        raise InputError(
            "Expression",
            f"at most {MAX_LENGTH} characters",
            len(line),
            "Put it in the model's quantities().",
        )
    plain, quoted = _unquote(line)
    try:
        # Parsed, and never evaluated by Python: only the nodes below are computed, and no
        # expression can run code.
        tree = ast.parse(plain, mode="eval").body
    except SyntaxError as error:
        # Stan and PyMC have variables called lambda.
        words = [word for word in re.findall(r"\w+", plain) if keyword.iskeyword(word)]
        names = [word for word in words if word not in ("and", "or", "not")]
        cure = f"; a variable named {names[0]} is put in backquotes, `{names[0]}`" if names else ""
        why = f"is not an expression ({error.msg}{cure})"
        _refuse(line, (error.offset or len(line) + 1) - 1, why)
    # Thousands of brackets, or a null byte.
    except (RecursionError, MemoryError, ValueError):
        _refuse(line, 0, "is not an expression")
    expression = Expression(line, tree, quoted)
    _check(expression)
    return expression


def evaluate_expressions(
    posterior: Values, expressions: Mapping[str, str | Expression], numbered: Container[str] = ()
) -> dict[str, np.ndarray]:
    """Return each expression at every draw, {name: (c, n) or (c, n, p)}.

    Parameters
    ----------
    posterior
        Draws, {variable: (c, n, ...)}; also any other values that the expressions may name.
    expressions
        ``{name: text}``, or what `parse_expression` returned.
    numbered
        Variables whose elements are named by whole numbers that are not their positions, as
        ``theta[1]``, …: an index is then such a name.

    Raises
    ------
    ValueError
        An unknown variable, an index outside one, shapes that do not fit, or more than one axis
        beside (c, n).
    """
    compiled = {
        name: compile_expression(e) if isinstance(e, str) else e for name, e in expressions.items()
    }
    return {name: expression(posterior, numbered) for name, expression in compiled.items()}


def evaluate_sides(
    posterior: Values, expressions: Mapping[str, str | Expression], numbered: Container[str] = ()
) -> dict[str, np.ndarray]:
    """Return both sides (c, n, ..., 2), as `evaluate_expressions`, of those that are comparisons of
    two."""
    sides = {}
    for name, given in expressions.items():
        expression = compile_expression(given) if isinstance(given, str) else given
        match expression.tree:
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                both = [
                    expression._replace(tree=side)(posterior, numbered) for side in (left, right)
                ]
                rank = max(side.ndim for side in both)
                both = [side.reshape(*side.shape, *[1] * (rank - side.ndim)) for side in both]
                sides[name] = np.stack(np.broadcast_arrays(*both), axis=-1)
    return sides


def _unquote(line: str) -> tuple[str, dict[str, str]]:
    """Replace backquoted names by identifiers of the same length, so that positions in the text
    stay valid."""
    quoted: dict[str, str] = {}

    def identifier(match: re.Match[str]) -> str:
        if not match[1]:
            _refuse(line, match.start(), "holds an empty name in backquotes")
        # A letter of a script that the line does not use, and as many characters as were replaced.
        code = 0x4E00 + len(quoted)
        while chr(code) in line:
            code += 1
        stand_in = chr(code) + "_" * (len(match[0]) - 1)
        quoted[stand_in] = match[1]
        return stand_in

    plain = _QUOTED.sub(identifier, line)
    if "`" in plain:
        _refuse(line, plain.index("`"), "holds an unclosed backquote")
    return plain, quoted


def _refuse(line: str, column: int, why: str) -> NoReturn:
    column = min(column, max(len(line) - 1, 0))
    raise InputError(
        f"Expression {line!r} {why}, at character {column + 1}: "
        f"{line[column : column + 20]!r}. Allowed: variables, numbers, + - * / **, "
        "comparisons, and or not, & | ~ between conditions, indices, and the functions "
        f"{' '.join(FUNCTIONS)}."
    )


def _check(expression: Expression) -> None:
    """Refuse every node that is not on the whitelist, and nesting beyond `MAX_DEPTH`."""
    # A list in place of recursion: the depth is what is being checked.
    pending: list[tuple[ast.expr, int]] = [(expression.tree, 1)]
    while pending:
        node, depth = pending.pop()
        why = "is nested too deeply" if depth > MAX_DEPTH else _fault_of(node)
        if why:
            expression.refuse(node, why)
        pending += [(child, depth + 1) for child in _operands(node)]


def _operands(node: ast.expr) -> list[ast.expr]:
    """Return the sub-expressions that are evaluated: neither a called name nor an index."""
    match node:
        case ast.Call():
            return list(node.args)
        case ast.Subscript():
            return [node.value]
        case _:
            return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _fault_of(node: ast.expr) -> str | None:
    match node:
        case ast.Name():
            return None
        case ast.Constant():
            if isinstance(node.value, bool) or not isinstance(node.value, int | float):
                return f"holds {node.value!r}, which is not a number"
            return (
                "holds a number too large for a float"
                if abs(node.value) > sys.float_info.max
                else None
            )
        case ast.BinOp():
            if type(node.op) in ARITHMETIC:
                return None
            if type(node.op) in LOGIC:
                return _not_conditions(node.left, node.right)
        case ast.BoolOp():
            return _not_conditions(*node.values)
        case ast.UnaryOp():
            return (
                None if isinstance(node.op, ast.USub | ast.UAdd) else _not_conditions(node.operand)
            )
        case ast.Compare():
            if all(type(op) in COMPARISONS for op in node.ops):
                return None
        case ast.Subscript():
            return (
                None
                if index_of(node) is not None
                else "holds an index that is not made of whole numbers"
            )
        case ast.Call():
            return _fault_of_call(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        return "holds ^, which is no power: write **"
    return f"holds what is not allowed here ({type(node).__name__})"


def _fault_of_call(node: ast.Call) -> str | None:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        return "calls what is not one of the functions"
    name = node.func.id
    count = ELEMENTWISE[name][0] if name in ELEMENTWISE else 3 if name == "where" else 1
    if node.keywords or len(node.args) != count:
        return f"calls {name}() with other than its {count} plain argument{'s' * (count > 1)}"
    return _not_conditions(node.args[0]) if name == "where" else None


def _not_conditions(*nodes: ast.expr) -> str | None:
    if all(_is_condition(node) for node in nodes):
        return None
    return (
        "uses a number where a condition belongs (put each comparison in parentheses: (a > 0) & "
        "(b > 0))"
    )


def _is_condition(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Compare | ast.BoolOp)
        or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert))
        or (isinstance(node, ast.BinOp) and type(node.op) in LOGIC)
    )
