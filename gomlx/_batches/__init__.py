"""Rows of data sets: read, shared out, answered, kept where a kill at any moment loses none, merged."""
