"""Matrices given by a function of their rows: dense, products in tiles, columns, partial factors."""

from mcmcpost.linops._operator import Tile, TileOperator, tile_diagonal, tile_gram
from mcmcpost.linops._pivoted_cholesky import pivoted_cholesky

__all__ = ["Tile", "TileOperator", "pivoted_cholesky", "tile_diagonal", "tile_gram"]
