"""The one door to the insides of libraries: a module a library, with what is used beyond its documented interface.

Everything else in the project keeps to documented interfaces, and replaces nothing of a library. A public way comes
first: a subclass, an argument, a layer of our own. What is here says why, what it gains, and until when. Of the project
it imports `core` only, and is told what else it needs. tests/test_compat.py fails by name where a library moves.
"""
