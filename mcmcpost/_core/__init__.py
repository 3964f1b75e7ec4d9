"""What every layer may use: statuses, input errors, warnings, precision, devices, MCSE, long axes, printed numbers."""
