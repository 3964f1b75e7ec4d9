"""Ladders of power posteriors: their rungs, where they belong, and how they are sampled."""
