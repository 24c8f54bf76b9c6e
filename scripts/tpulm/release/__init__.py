"""Verify, publish and archive artifacts, and rebuild them from an archive.

Enter at `archive`, `publishing` and `integrity`; `verify` and `rebuild` run from within an archive.
"""
