"""Profiles of a step: traces, breakdowns by kernel and phase, SVG charts."""
