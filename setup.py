"""The compiled loops, the one thing that pyproject.toml cannot say.

They are all in src/emberflow/native. Where there is no compiler the same loops run in Python (in
src/emberflow/engine/loops and src/emberflow/checkpoint/cuts/tables.py), and memory stays in small
pages (src/emberflow/runners/interpreter.py).
"""

from setuptools import Extension, setup

NATIVE = "src/emberflow/native"
HEADERS = [f"{NATIVE}/{header}.h" for header in ("_buckets", "_hashing", "_items")]

setup(
    ext_modules=[
        Extension(
            f"emberflow.native.{name}", [f"{NATIVE}/{name}.c"], depends=HEADERS, optional=True
        )
        for name in ("_arenas", "_columns", "_loops", "_rows", "_versions")
    ]
)
