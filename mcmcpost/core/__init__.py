"""What every layer may use: errors and statuses, arguments, arrays, precision, devices, MCSE,
printed numbers."""
