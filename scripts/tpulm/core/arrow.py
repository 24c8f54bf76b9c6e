"""pyarrow without pandas.

When pyarrow converts its first object, it imports pandas to see whether the object is one of pandas': a quarter of a
second in every job that reads or writes documents.
"""

import sys

import pyarrow as pa


class Absent:
    """Among the finders of modules, lets pandas be missing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise ImportError for pandas."""
        if name == "pandas":
            raise ImportError("left out")


def leave_pandas_out() -> None:
    """Let pyarrow look for pandas now, and not find it. Pandas can be imported afterwards, and `to_pandas` works."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, Absent)
        try:
            pa.array([None])
        finally:
            sys.meta_path.remove(Absent)
