"""How each of ``kernels/`` is launched: what it is given, and how many programs run it.

Every ``add`` puts its launches at the end of a ``Draft``, those they read from before them.
"""
