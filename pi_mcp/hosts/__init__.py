"""The ways into an agent: the built-in terminal host, and toolsets for agent frameworks."""
