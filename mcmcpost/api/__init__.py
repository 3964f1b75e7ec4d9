"""The public functions, one file a subject: read the tree and gate its scores once, call the layers below, return."""
