"""The compiled loops, the one thing that pyproject.toml cannot say.

Where there is no compiler the same loops run in Python (src/emberflow/engine/loops.py).
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("emberflow.engine._loops", ["src/emberflow/engine/_loops.c"], optional=True)
    ]
)
