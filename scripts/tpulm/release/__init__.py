"""Artifacts that leave the machine: verified, published, archived, and made again from an archive.

Enter at `archive`, `publishing` and `integrity`; `verify` and `rebuild` run from within an archive.
"""
