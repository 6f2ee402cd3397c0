"""``python -m emberflow`` is the command ``emberflow``."""

from emberflow.cli import main

if __name__ == "__main__":
    main()
