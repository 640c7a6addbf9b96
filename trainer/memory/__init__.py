"""Shared fields, each with one writer."""
