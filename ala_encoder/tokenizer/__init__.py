"""Tokenizers of six kinds behind one interface.

For: training a vocabulary, reading an existing one, text to ids and back. Not for: reading text
files (`sources`), masking (`objectives`), storing ids (`corpus`).
"""

from ala_encoder.tokenizer.base import InLanguage, Special, Tokenizer
from ala_encoder.tokenizer.byte_bpe import ByteBPE
from ala_encoder.tokenizer.fairseq import FairseqBPE
from ala_encoder.tokenizer.folder import fetch, load, make, open_folder
from ala_encoder.tokenizer.marian import Marian
from ala_encoder.tokenizer.pretrained import Pretrained
from ala_encoder.tokenizer.report import fit_report, round_trip_report
from ala_encoder.tokenizer.sentence_piece import SentencePiece
from ala_encoder.tokenizer.training import train
from ala_encoder.tokenizer.wordpiece import SPECIAL_TOKENS, Normalisation, WordPiece

__all__ = [
    "SPECIAL_TOKENS",
    "ByteBPE",
    "FairseqBPE",
    "InLanguage",
    "Marian",
    "Normalisation",
    "Pretrained",
    "SentencePiece",
    "Special",
    "Tokenizer",
    "WordPiece",
    "fetch",
    "fit_report",
    "load",
    "make",
    "open_folder",
    "round_trip_report",
    "train",
]
