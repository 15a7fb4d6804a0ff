"""Scores at run time: a `sp.score.Score` evaluated, differentiated and skipped on rectangles of queries and keys."""

from sp.runtime.scores.bound import BoundScore, SourceScore
from sp.runtime.scores.tile import Piece, TileScore

__all__ = ["BoundScore", "Piece", "SourceScore", "TileScore"]
