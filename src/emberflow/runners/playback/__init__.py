"""Speculation made visible: what a simulated run computed, took back and released, and a page that plays it.

`recorder`   listens to the workers of a simulation
`page`       the recording as one HTML file
"""
