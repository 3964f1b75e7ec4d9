"""Families of controls: of draws and scores, of named dimensions, of one quantity."""
