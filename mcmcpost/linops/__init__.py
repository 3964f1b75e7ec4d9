"""Matrices given by a function of their rows: products in tiles, columns, partial factors."""

from mcmcpost.linops._operator import TileOperator
from mcmcpost.linops._pivoted_cholesky import pivoted_cholesky

__all__ = ["TileOperator", "pivoted_cholesky"]
