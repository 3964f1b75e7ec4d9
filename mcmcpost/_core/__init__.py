"""What every layer may touch: statuses, input errors, precision, ArviZ's MCSE, long axes, printed numbers."""
