"""Render the report's page, cards, and the tables of `compare`, with reproducible bytes.

Enter at `page`; `sources` reads the files of a page, `verdicts` judges the models.
"""
