"""Layout of the report: tables as HTML, figures as SVG, with the same bytes every time."""
