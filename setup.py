"""The compiled loops, the one thing that pyproject.toml cannot say.

Where there is no compiler the same loops run in Python (in src/emberflow/engine: loops.py,
accessing.py, columns.py; in src/emberflow/checkpoint: tables.py), and memory stays in small pages
(src/emberflow/runners/interpreter.py).
"""

from setuptools import Extension, setup

ENGINE = "src/emberflow/engine"

setup(
    ext_modules=[
        Extension(
            f"emberflow.engine.{name}",
            [f"{ENGINE}/{name}.c"],
            depends=[f"{ENGINE}/{header}.h" for header in ("_buckets", "_hashing", "_items")],
            optional=True,
        )
        for name in ("_columns", "_loops", "_versions")
    ]
    + [
        Extension(
            f"emberflow.{package}.{name}", [f"src/emberflow/{package}/{name}.c"], optional=True
        )
        for package, name in (("checkpoint", "_rows"), ("runners", "_arenas"))
    ]
)
