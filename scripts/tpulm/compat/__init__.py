"""All uses of the private names of libraries, a module for each library.

Other code keeps to documented interfaces, and replaces nothing of a library. A public way comes first: a subclass, an
argument, a new layer. Each function here has a reason (why), and a condition on which it can go (until). The package
imports only `core` of the project. tests/test_compat.py names what has moved in a library.
"""
