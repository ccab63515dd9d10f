"""Turn short texts into the numbers that the network reads: an id for each piece of each word.

The pieces of a word are the word itself and its parts of three to five letters, so that the network also knows
something about words that it has never seen. This file is saved with the model, because predictions need it.
"""

import functools
import re
import zlib
from pathlib import Path

import numpy as np

WORD = re.compile(r"[#@]?\w+(?:'\w+)?")
CLASSES = ("negative", "positive")
WORDS, PIECES = 32, 20  # most words of a text, most pieces of a word; the rest is cut off
IDS = 32768  # number of different ids; the id 0 is padding


@functools.cache
def piece_ids(word):
    """Return the ids of a word's pieces, padded with 0 to PIECES ids.

    An id is a hash of its piece, so the model needs no list of words.
    """
    marked = f"<{word}>"
    parts = [marked[i : i + size] for size in (3, 4, 5) for i in range(len(marked) - size + 1)]
    ids = [zlib.crc32(piece.encode()) % (IDS - 1) + 1 for piece in [word, *parts][:PIECES]]
    return ids + [0] * (PIECES - len(ids))


def encode(texts):
    """Return the ids of the pieces of all texts, int64 [texts, WORDS, PIECES]."""
    ids = np.zeros((len(texts), WORDS, PIECES), "int64")
    for number, text in enumerate(texts):
        for place, word in enumerate(WORD.findall(text.lower())[:WORDS]):
            ids[number, place] = piece_ids(word)
    return ids


def read_rows(path):
    r"""Return the ids and the classes (0 or 1) of a file's texts. Skip texts whose sentiment is not one of CLASSES.

    A line has a sentiment, a tab and a text. The data Job writes a newline inside a text as `\n`.
    """
    with Path(path).open(encoding="utf-8", newline="\n") as file:
        fields = [re.sub(r"\\[tnr]", " ", line).split("\t") for line in file]
    rows = [(text, CLASSES.index(mood)) for mood, text in fields if mood in CLASSES]
    return encode([text for text, _ in rows]), np.array([label for _, label in rows], "int64")
