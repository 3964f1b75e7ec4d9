"""The values of a checked expression at every draw: arrays with chain and draw in front, broadcast behind them."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

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
    """Return the whole numbers of ``value[i, j]``, or None if the index holds anything else."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    indices = []
    for part in parts:
        negative = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
        number = part.operand if isinstance(part, ast.UnaryOp) and negative else part
        if not isinstance(number, ast.Constant) or type(number.value) is not int:
            return None
        indices.append(-number.value if negative else number.value)
    return tuple(indices) or None


class Evaluation(NamedTuple):
    """One expression at one set of values. Every intermediate has the two leading axes (c, n), or (1, 1).

    values : {variable: (c, n, ...)}.
    quoted : the variable that an identifier stands for, where it was quoted.
    refuse : raises the error of a node.
    """

    values: Values
    quoted: Mapping[str, str]
    refuse: Callable[[ast.AST, str], NoReturn]

    def run(self, tree: ast.expr) -> np.ndarray:
        """Return the values of `tree`, (c, n) or (c, n, p); invalid operations give NaN or infinity silently."""
        lead = next(iter(self.values.values())).shape[:2]
        with np.errstate(all="ignore"):
            result = self.visit(tree)
        if result.ndim > 3:
            self.refuse(tree, f"gives {result.ndim - 2} axes a draw (index it, or take sum or mean)")
        return np.broadcast_to(result, lead + result.shape[2:]).copy()

    def visit(self, node: ast.expr) -> np.ndarray:
        match node:
            case ast.Constant():
                return np.full((1, 1), float(node.value))  # type: ignore[arg-type]  # checked: an int or a float
            case ast.Name():
                return self.variable(node)
            case ast.Subscript():
                return self.element(node)
            case ast.UnaryOp():
                value = self.visit(node.operand)
                return (
                    value if isinstance(node.op, ast.UAdd) else -value if isinstance(node.op, ast.USub) else 1 - value
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
            self.refuse(node, f"names {name!r}, which is not among the variables ({available})")
        return np.asarray(self.values[name], np.float64)

    def element(self, node: ast.Subscript) -> np.ndarray:
        value, index = self.visit(node.value), index_of(node)
        where: tuple[Any, ...] = (slice(None), slice(None), *(index or ()))
        try:
            return value[where]
        except IndexError:
            self.refuse(node, f"has an index {index} outside the shape {value.shape[2:]} of one draw")

    def compare(self, node: ast.Compare) -> np.ndarray:
        terms = [self.visit(term) for term in (node.left, *node.comparators)]
        result = np.ones((1, 1))
        for op, left, right in zip(node.ops, terms[:-1], terms[1:], strict=True):
            result = self.apply(node, np.multiply, result, self.apply(node, COMPARISONS[type(op)], left, right))
        return result

    def call(self, node: ast.Call, name: str) -> np.ndarray:
        arguments = [self.visit(argument) for argument in node.args]
        if name in REDUCTIONS:
            return REDUCTIONS[name](arguments[0], axis=tuple(range(2, arguments[0].ndim)))
        if name == "where":
            condition, yes, no = self.aligned(node, arguments)
            return np.where(np.isnan(condition), np.nan, np.where(condition != 0, yes, no))
        return self.apply(node, ELEMENTWISE[name][1], *arguments)

    def apply(self, node: ast.expr, function: Callable[..., np.ndarray], *values: np.ndarray) -> np.ndarray:
        """Apply `function` element by element; a NaN in any argument gives NaN."""
        arguments = self.aligned(node, values)
        undefined = np.logical_or.reduce([np.isnan(argument) for argument in arguments])
        return np.where(undefined, np.nan, function(*arguments))

    def aligned(self, node: ast.expr, values: list[np.ndarray] | tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """Broadcast the axes of one draw against each other, leaving chain and draw in front."""
        rank = max(value.ndim for value in values)
        padded = [v.reshape(v.shape[:2] + (1,) * (rank - v.ndim) + v.shape[2:]) for v in values]
        try:
            return list(np.broadcast_arrays(*padded))
        except ValueError:
            self.refuse(node, f"combines shapes of one draw that do not fit, {[v.shape[2:] for v in values]}")
