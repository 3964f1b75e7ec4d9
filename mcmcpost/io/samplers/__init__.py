"""Traces as samplers leave them: one file a sampler."""
