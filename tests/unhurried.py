"""Examples of hypothesis may take as long as they take: machines are busy, and sanitizers are slow."""

from hypothesis import settings

from tests.effort import examples

settings.register_profile("unhurried", deadline=None, max_examples=examples(100))
settings.load_profile("unhurried")
