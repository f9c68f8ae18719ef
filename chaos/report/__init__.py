"""A run's result as one HTML file that needs nothing else, and loads nothing from anywhere.

`page.py` makes it, from `verdict.py` (what is said first), `timeline.py` and `lanes.py` (what is
drawn) and `tables.py` (what is listed); `embedded.py` reads the result back out of it.
"""
