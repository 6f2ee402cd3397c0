"""The extension modules, which pyproject.toml cannot describe.

Where there is no compiler they are left out, and emberflow runs the same loops in Python: see
src/emberflow/native/__init__.py.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/emberflow/native")
HEADERS = [str(header) for header in sorted(NATIVE.glob("headers/*.h"))]

setup(
    ext_modules=[
        Extension(f"emberflow.native.{source.stem}", [str(source)], depends=HEADERS, optional=True)
        for source in sorted(NATIVE.glob("*.c"))
    ]
)
