"""One file per command of ``lean-attention``; each exposes the function that typer wraps."""
