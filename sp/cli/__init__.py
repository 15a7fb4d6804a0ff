"""The command `sp`: look at a model, try it, weigh it, time it, without writing a script.

sp inspect hf:llama --strategy zigzag --world 8
"""

from sp.cli.main import main

__all__ = ["main"]
