"""Agents: how a policy is learned from transitions."""
