"""Control variates of several related tasks together."""
