"""Changelogs: tables that change, as streams of their changes. See docs/operators.md."""

from emberflow.dsl.operators.changes.change import Change
from emberflow.dsl.operators.changes.streams import Changes, GroupedChanges, changes_from
from emberflow.dsl.operators.changes.upserts import changes

__all__ = ["Change", "Changes", "GroupedChanges", "changes", "changes_from"]
