"""Guess a number: each guess is answered by higher, lower or yes."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.task import Task
from .noted import NotedEnv

LARGEST = 31  # of which the middle is asked for five times at most
HIGHER, LOWER, YES, UNKNOWN = "higher", "lower", "yes", "what"


class GuessNumber(NotedEnv):
    """One episode: `guess N` is answered by whether the number is higher or lower, or ends it.

    The reward is 1 for the right guess, however many came before. Tag of a task: number, from 1 to LARGEST.
    """

    max_turns = 10
    max_tokens = 6
    in_thread = False

    def reset(self, task: Task) -> str:
        """The prompt, the same for every number."""
        self.number: int = task.tags["number"]
        self.low, self.high = 1, LARGEST
        self.begin()
        return "which number"

    def step(self, text: str) -> tuple[str, float, bool]:
        """Answer a guess."""
        action, before = " ".join(text.split()), self.remaining()
        verb, _, digits = action.partition(" ")
        answer, won = UNKNOWN, False
        if verb == "guess" and digits.isdecimal() and 1 <= int(digits) <= LARGEST:
            guess = int(digits)
            won = guess == self.number
            if won:
                answer = YES
            elif guess < self.number:
                answer, self.low = HIGHER, max(self.low, guess + 1)
            else:
                answer, self.high = LOWER, min(self.high, guess - 1)
        self.note(action, answer != UNKNOWN, before - (0 if won else self.remaining()))
        return answer, float(won), won

    def remaining(self) -> int:
        """The guesses that halving needs at most: n numbers take floor(log2 n) + 1 of them."""
        return (self.high - self.low + 1).bit_length()

    def actions(self) -> Sequence[str]:
        """All guesses."""
        return [f"guess {n}" for n in range(1, LARGEST + 1)]

    def expert(self) -> str:
        """The middle of the numbers that are left."""
        return f"guess {(self.low + self.high) // 2}"
