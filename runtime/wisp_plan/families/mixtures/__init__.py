"""Families of mixtures of experts, and the declaration of their weights."""
