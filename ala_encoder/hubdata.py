"""Loading a data set by its `datasets` name: from a local folder, the hub, or the cache.

For: one clear line, within seconds, for whatever is not there; no code of a data set ever runs.
Not for: splits and rows (`tables`), models (`hub`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ala_encoder.errors import UserError, nearest

if TYPE_CHECKING:
    import datasets

_PROBE_SECONDS = 3.0


def load(name: str, config: str | None, revision: str | None) -> Mapping[str, datasets.Dataset]:
    """Return every split of a data set: a folder of `save_to_disk`, another folder, a hub name.

    Raises UserError for a name, config or revision that is not there, for one without effect, and
    when neither the hub nor a copy in the cache can be had.
    """
    import datasets
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()
    datasets.logging.set_verbosity_error()
    folder, shown = Path(name), f"{name}/{config}" if config else name
    is_saved = any((folder / f).is_file() for f in ("dataset_dict.json", "state.json"))
    if config is not None and is_saved:
        raise UserError(f"{name}: config = {config!r} has no effect on what save_to_disk wrote")
    if revision is not None and folder.is_dir():
        raise UserError(f"{name}: revision = {revision!r} has no effect on a local folder")
    try:
        if is_saved:
            data = datasets.load_from_disk(name)
        elif folder.is_dir():
            data = datasets.load_dataset(name, config)
        else:
            data = _from_hub(name, config, revision)
    except UserError:
        raise
    except Exception as error:  # the library raises anything from KeyError to its own classes
        reason = f"{one_line(error)}{_configs(name, config, revision)}"
        raise UserError(f"{shown}: cannot be loaded: {reason}") from None
    return data if isinstance(data, dict) else {str(data.split or "train"): data}


def _from_hub(name: str, config: str | None, revision: str | None) -> Any:
    """Load from the hub, or from the cache when the hub cannot be reached."""
    import datasets
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
    except Exception as error:  # name resolution, proxy, time-out, 5xx: all mean "not now"
        with _offline():
            try:
                return datasets.load_dataset(name, config, revision=revision)
            except (OSError, ValueError) as missing:
                raise UserError(
                    f"{name}: no such folder, the hub cannot be reached ({one_line(error)}) "
                    f"and the cache has no copy ({one_line(missing)}); name a folder that "
                    "`save_to_disk` wrote, or set HF_HOME to a cache that has it"
                ) from None
    return datasets.load_dataset(name, config, revision=revision)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the libraries off the network: each of their retries would wait for half a minute."""
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
    except Exception:
        return ""
    if config in known or (config is None and len(known) < 2):
        return ""
    return f"; allowed configs are {', '.join(known)}{nearest(config or '', known)}"


def one_line(error: BaseException) -> str:
    """Return the start of an error's text as one line, or its class where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__
