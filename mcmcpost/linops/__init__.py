"""Matrices given by a function of their rows: dense, products in tiles, columns, partial factors."""

from mcmcpost.linops._kernel import KernelTile, bilinear_gradient, kernel_operator
from mcmcpost.linops._operator import Tile, TileOperator, device_mesh, tile_diagonal, tile_gram
from mcmcpost.linops._pivoted_cholesky import pivoted_cholesky
from mcmcpost.linops._regularised import LowRankInverse, Regularised

__all__ = [
    "KernelTile",
    "LowRankInverse",
    "Regularised",
    "Tile",
    "TileOperator",
    "bilinear_gradient",
    "device_mesh",
    "kernel_operator",
    "pivoted_cholesky",
    "tile_diagonal",
    "tile_gram",
]
