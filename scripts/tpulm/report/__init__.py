"""The page of the report, cards, and the tables of `compare`, with the same bytes every time.

Enter at `page`; `sources` names the files that a page tells of, `verdicts` has its first sentences.
"""
