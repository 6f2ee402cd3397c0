"""Examples of hypothesis may take as long as they take: machines are busy, and sanitizers are slow."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
