"""Statements about agents."""
