"""What the papers compare themselves with, written in the same form as the strategies."""
