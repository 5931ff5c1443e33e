"""Hooks for clients of agents: call advice before each call. Each SDK is imported by its own module only."""
