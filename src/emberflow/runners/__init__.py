"""Runners: the ways to execute one graph. They differ in what moves the items, never in output."""
