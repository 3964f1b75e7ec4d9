"""Matrices given by a function of their rows: dense, products in tiles, columns, partial factors."""

from mcmcpost.linops.operator import (
    KernelTile,
    Tile,
    TileOperator,
    bilinear_gradient,
    device_mesh,
    kernel_operator,
    tile_diagonal,
    tile_gram,
)
from mcmcpost.linops.regularised import LowRankInverse, Regularised, pivoted_cholesky

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
