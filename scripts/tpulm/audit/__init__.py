"""Checks of the artifacts: which are damaged, missing or left over."""
