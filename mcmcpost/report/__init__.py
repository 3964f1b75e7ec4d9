"""Plots: the only package that knows a plotting backend."""

from mcmcpost.report._evidence_path import plot_evidence_path

__all__ = ["plot_evidence_path"]
