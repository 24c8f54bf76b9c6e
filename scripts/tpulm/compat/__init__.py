"""The one door to the insides of libraries.

What is used of a library beyond its documented interface is here, a module a library: a private name, a method that is
replaced, the wording of a message. Each module says what, why, what it gains, and when it can go; tests/test_compat*.py
name what has moved when the library does. The room imports `core` only: callers pass in what it needs.
"""
