"""Data sets by their `datasets` name: a local folder, the hub or the cache, split by split.

For: rows as `tables` gives those of files, and one clear line, within seconds, for whatever is not
there. No code of a data set ever runs. Not for: files of tables (`tables`), models (`hub`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ala_encoder.errors import UserError, nearest, reason, shown
from ala_encoder.lines import Reading
from ala_encoder.tables import AT_ONCE, Record, arrow_rows, label_names, make_record

if TYPE_CHECKING:
    import datasets

_PROBE_SECONDS = 3.0


class NamedDataset:
    """A data set by its `datasets` name: on the hub, a local folder, or of `save_to_disk`.

    It is loaded when first used. Raises UserError, then, for a name, config, revision or split that
    is not there, for a setting without effect, and within seconds when the hub cannot be reached
    and no copy is in the cache; `say` is told of a copy that is used without the hub.
    """

    def __init__(
        self,
        name: str,
        config: str | None = None,
        revision: str | None = None,
        *,
        say: Callable[[str], None] = print,
    ) -> None:
        self.name, self.config, self.revision, self._say = name, config, revision, say

    def __str__(self) -> str:
        return f"{self.name}/{self.config}" if self.config else self.name

    @cached_property
    def _loaded(self) -> Mapping[str, datasets.Dataset]:
        data = _load(self)
        return data if isinstance(data, dict) else {str(data.split or "train"): data}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits there are."""
        return tuple(self._loaded)

    def rows(self, split: str) -> tuple[str, range]:
        """Return the split and the rows in it that a name or a slice (`train[:10%]`) means."""
        import datasets

        base = split.partition("[")[0]
        if base not in self.splits:
            near, allowed = nearest(base, self.splits), ", ".join(self.splits)
            raise UserError(f"{self}: no split {base!r}{near}; allowed are {allowed}")
        length = len(self._loaded[base])
        try:
            (part,) = datasets.ReadInstruction.from_spec(split).to_absolute({base: length})
        except (ValueError, AssertionError) as error:
            raise UserError(
                f"{self}: split {split!r}: allowed is a split or one slice of it, such as "
                f"{base}[:10%]: {reason(error)}"
            ) from None
        return base, range(part.from_ or 0, length if part.to is None else part.to)

    def fingerprint(self, split: str) -> str:
        """Return the library's fingerprint of a split, with the rows taken: another for other data.

        It follows the version on the hub, or the files' names and times, or what was saved.
        """
        base, rows = self.rows(split)
        return f"{self._loaded[base]._fingerprint}[{rows.start}:{rows.stop}]"

    def records(self, split: str, reading: Reading) -> Iterator[Record]:
        """Yield the rows of a split or a slice, numbered as they stand in the split.

        Raises UserError, naming the row, where the data cannot be read.
        """
        import pyarrow as pa

        base, rows = self.rows(split)
        data = self._loaded[base]
        labels = label_names(data.features.arrow_schema)
        number = rows.start
        if not rows:
            return  # `select` takes no empty range at the end
        try:
            for table in data.select(rows).with_format("arrow").iter(AT_ONCE):
                for row in arrow_rows(table, labels):
                    yield make_record(number, f"{self}[{base}], row {number + 1}", row, reading)
                    number += 1
        except (pa.ArrowException, OSError, ValueError) as error:
            where = f"{self}[{base}]: cannot be read after row {number}"
            raise UserError(f"{where}: {reason(error)}") from None


def _load(asked: NamedDataset) -> Any:
    """Load every split: from a folder of `save_to_disk`, another folder, the hub or the cache."""
    import datasets
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()
    datasets.logging.set_verbosity_error()
    name, config, revision = asked.name, asked.config, asked.revision
    folder = Path(name)
    is_saved = any((folder / f).is_file() for f in ("dataset_dict.json", "state.json"))
    if config is not None and is_saved:
        raise UserError(f"{name}: config = {config!r} has no effect on what save_to_disk wrote")
    if revision is not None and folder.is_dir():
        raise UserError(f"{name}: revision = {revision!r} has no effect on a local folder")
    if folder.is_dir() and not is_saved:
        _refuse_raw(folder)
    away = None if folder.is_dir() else _why_away(name, revision)
    with _offline() if away else contextlib.nullcontext():
        try:
            if is_saved:
                return datasets.load_from_disk(name)
            data = datasets.load_dataset(name, config, revision=revision)
        except Exception as error:  # the library raises anything from KeyError to its own classes
            why = reason(error)
            if isinstance(error, ValueError):  # a config that is not there is one
                why += _configs(name, config, revision)
            if away:
                raise UserError(
                    f"{asked}: no such folder, the hub cannot be reached ({away}) and the cache "
                    f"has no copy ({why}); name a folder that `save_to_disk` wrote, or set HF_HOME "
                    "to a cache that has it"
                ) from None
            raise UserError(f"{asked}: cannot be loaded: {why}") from None
    if away:
        asked._say(f"{asked}: the hub was not reached ({away}), using the cached copy")
    return data


_RAW = (".tsv", ".tsv.gz", ".txt", ".txt.gz")


def _refuse_raw(folder: Path) -> None:
    """Raise UserError for files that the library would read by another rule than ours.

    It takes quotes in TSV for quoting, so that rows fuse, and ends a line at a lone CR.
    """
    raw = next((p.name for p in sorted(folder.rglob("*")) if p.name.lower().endswith(_RAW)), None)
    if raw is not None:
        raise UserError(
            f"{folder}: {shown(raw)} is no file to read by `datasets`; name the folder as "
            "data.path, or as data.source of kind `files`"
        )


@cache
def _why_away(name: str, revision: str | None) -> str:
    """Return why the hub cannot be asked for a data set now, or '' when it has it.

    Raises UserError when there is no such data set. The hub is asked once, and briefly: each of the
    libraries' own retries would wait for half a minute.
    """
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub

    if name in FORMATS:  # the library would read whatever lies in the current folder
        raise UserError(f"{name}: a file format, allowed is a folder or a name on the hub")
    try:
        HfApi().dataset_info(name, revision=revision, timeout=_PROBE_SECONDS)
    except hub.HFValidationError:
        raise UserError(f"{name}: no such folder, and no OWNER/NAME of the hub") from None
    except hub.RevisionNotFoundError:
        raise UserError(f"{name}: no revision {revision!r} on the hub") from None
    except hub.RepositoryNotFoundError:
        raise UserError(f"{name}: no such folder, and no data set open to you on the hub") from None
    except Exception as error:
        # Time-out, proxy, status 5xx: the HTTP library's, whose name differs by version.
        if isinstance(error, (OSError, *hub.HfHubHTTPError.__bases__)):
            return reason(error)
        raise
    return ""


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the libraries off the network."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _configs(name: str, config: str | None, revision: str | None) -> str:
    """Say which configs there are when the one that is asked for is not among them."""
    import datasets

    try:
        known = datasets.get_dataset_config_names(name, revision=revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError):
        return ""  # what the first error says is enough
    if config in known or (config is None and len(known) < 2):
        return ""
    return f"; allowed configs are {', '.join(known)}{nearest(config or '', known)}"
