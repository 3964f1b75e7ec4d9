"""Kernel control variates: their choice, their systems and their fits."""
