"""What frameworks need beside `sp.parallelize` to deal their batches to groups of ranks in place of ranks.

Nothing here is imported by `import sp`, and no framework by this.  docs/frameworks.md says what needs it.
"""

from sp.frameworks.replicas import Replicas
from sp.frameworks.trainer import TrainerMixin

__all__ = ["Replicas", "TrainerMixin"]
