"""The config and what follows from it alone.

Read, completed, checked; the description of each run; schedules, meshes, model sizes, and the names of artifacts that
stages agree on.
"""
