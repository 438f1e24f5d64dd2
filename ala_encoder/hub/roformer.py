"""RoFormer (Su et al. 2021, arXiv:2104.09864): BERT whose q and k are turned, without positions.

It turns the neighbours (2m, 2m + 1) of a head together; ours are (m, m + d/2), so that the rows of
q and k are in another order. Its classifier has no pooler like ours, so there is no such form.
"""

from __future__ import annotations

from dataclasses import replace

from ala_encoder.hub import bert
from ala_encoder.hub.family import Family

FAMILY = Family(
    name="RoFormer",
    config="RoFormerConfig",
    model=bert.FAMILY.model,
    parts={
        "encoder": tuple(
            replace(row, in_pairs="bank" in row.ours)
            for row in bert.ENCODER
            if "position" not in row.theirs
        ),
        "head": bert.HEAD,
    },
    forms={"encoder": ("encoder",), "masked_lm": ("encoder", "head")},
    prefix="roformer.",
    outside=("cls.",),
    tied=bert.FAMILY.tied,
    sines={"encoder.embed_positions.weight": "head"},
    fields={**bert.FAMILY.fields, "dim": ("hidden_size", "embedding_size")},
    ours={**bert.FAMILY.ours, "positions": "rotary"},
    theirs={
        "rotary_value": (False,),
        "type_vocab_size": (2,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    free=bert.FAMILY.free,
    attention_dropout=bert.FAMILY.attention_dropout,
)
