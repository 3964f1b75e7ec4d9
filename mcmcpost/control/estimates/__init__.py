"""What is reported: integrands in, estimates of them and of what is derived from them out."""
