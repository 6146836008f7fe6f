"""Generates the stories that the demo's model learns, and scores its completions.

A story has a topic and a few sentences; in the training text most sentences are about the topic. A
good completion has four different, correct sentences about the topic.
"""

from __future__ import annotations

import random
import re

NOUNS = ("fox", "owl", "bear", "king", "river", "stone", "boat", "lamp", "door", "tree")
ADJECTIVES = ("small", "red", "old", "quiet", "quick", "cold")
VERBS = ("finds", "sees", "keeps", "follows", "paints", "hears")
ARTICLES = ("the", "a")
WORDS = ("story", ":", ".", "near", *ARTICLES, *ADJECTIVES, *VERBS, *NOUNS)
NUMBER = {word: number for number, word in enumerate(WORDS)}

PROMPT = 3
"""Words of a prompt: `story fox :`."""
COMPLETION = 26
"""Words of a completion. Most stories end in the middle of a sentence."""
SENTENCES = 4
"""Good sentences that earn the full reward."""


def story(rng: random.Random) -> list[int]:
    """One story as numbers, PROMPT + COMPLETION long."""
    topic = rng.choice(NOUNS)
    words = ["story", topic, ":"]
    while len(words) < PROMPT + COMPLETION:
        words += _sentence(topic if rng.random() < 0.7 else rng.choice(NOUNS), rng)
    return [NUMBER[word] for word in words[: PROMPT + COMPLETION]]


def prompt(rng: random.Random) -> list[int]:
    """The beginning of a story, PROMPT long."""
    return [NUMBER[word] for word in ("story", rng.choice(NOUNS), ":")]


def reward(numbers: list[int]) -> float:
    """Share of SENTENCES different, correct sentences about the topic: between 0 and 1."""
    words = [WORDS[number] for number in numbers]
    topic, written = words[1], " ".join(words[PROMPT:])
    finished = written.split(" .")[:-1]
    good = {sentence.strip() for sentence in finished if _about(topic).fullmatch(sentence.strip())}
    return min(1.0, len(good) / SENTENCES)


def _sentence(subject: str, rng: random.Random) -> list[str]:
    words = [*_noun_phrase(subject, rng), rng.choice(VERBS), *_noun_phrase(rng.choice(NOUNS), rng)]
    if rng.random() < 0.4:
        words += ["near", "the", rng.choice(NOUNS)]
    return [*words, "."]


def _noun_phrase(noun: str, rng: random.Random) -> list[str]:
    adjective = [rng.choice(ADJECTIVES)] if rng.random() < 0.5 else []
    return [rng.choice(ARTICLES), *adjective, noun]


def _about(topic: str) -> re.Pattern[str]:
    article, adjective = "|".join(ARTICLES), "|".join(ADJECTIVES)
    verb, noun = "|".join(VERBS), "|".join(NOUNS)
    return re.compile(
        rf"({article})( ({adjective}))? {topic} ({verb})"
        rf" ({article})( ({adjective}))? ({noun})( near the ({noun}))?"
    )
