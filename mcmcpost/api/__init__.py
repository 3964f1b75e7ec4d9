"""The public functions, one file for each subject; every call reads its tree and gates the scores once."""
