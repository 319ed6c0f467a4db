"""Suture: subgraph federated learning."""
