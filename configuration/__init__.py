"""Recipes: one YAML file per experiment, and the dataclasses that give each of its keys a type and a meaning."""
