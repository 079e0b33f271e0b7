"""Checks whether a published data set can be had before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

from gradwire.harness.data.prepare import is_prepared
from gradwire.harness.data.settings import WAYS_OUT, DatasetConfig
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.weights import TIMEOUT_S, is_offline


def dataset_available(dataset: DatasetConfig, model: ModelConfig) -> str | None:
    """Returns None, or one line that says why a resolved `dataset` cannot be had and what to do.

    Looks at prepared data and the Hugging Face cache first. Asks the hub (one request of at most five
    seconds) only if neither has the data set, and never when told to stay offline.
    """
    if dataset.hub is None or Path(dataset.hub).is_dir() or is_prepared(dataset, model):
        return None
    pattern = f"{dataset.configuration or 'default'}{'-*' if dataset.files else ''}"
    reason = repository_available(dataset.hub, pattern, dataset.revision)
    return reason and f"dataset={dataset.name} ({dataset.hub}): {reason}; {WAYS_OUT}"


def repository_available(hub: str, configuration: str = "*", revision: str | None = None) -> str | None:
    """Returns None, or says why a repository's data can be had neither from the cache nor from the hub.

    `configuration` is a pattern of the names that the cache gives to prepared configurations. Asks as
    `dataset_available` does.
    """
    if _in_cache(hub, configuration, revision):
        return None
    where = "not in the Hugging Face cache"
    if is_offline():
        return f"{where} and HF_HUB_OFFLINE is set"
    refused = _refused_by_hub(hub, revision)
    return refused and f"{where} and {refused}"


def _in_cache(hub: str, configuration: str, revision: str | None) -> bool:
    """Whether `datasets` has prepared this configuration before, so that no hub is needed.

    Its folders are <cache>/<owner>___<name>/<configuration>/<version>/<commit>. Files chosen by a pattern add
    a hash to the configuration. A revision identifies a folder only if it is a full commit hash.
    """
    folder = _cache_folder() / hub.replace("/", "___")
    return any(folder.glob(f"{configuration}/*/{revision or '*'}/dataset_info.json"))


def _cache_folder() -> Path:
    from huggingface_hub.constants import HF_HOME

    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME, "datasets")).expanduser()


def _refused_by_hub(hub: str, revision: str | None) -> str | None:
    """Returns None if the hub would hand out the data set, else the reason why not."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        card = hf_hub_url(hub, "README.md", repo_type="dataset", revision=revision)
        get_hf_file_metadata(card, timeout=TIMEOUT_S)
    except EntryNotFoundError:  # a repository without a card
        return None
    except GatedRepoError:
        return "the hub wants its terms accepted and a token (hf auth login)"
    except RevisionNotFoundError:
        return f"the hub knows no revision {revision} of it (dataset.revision=)"
    except (RepositoryNotFoundError, HFValidationError):
        return "the hub knows no such data set, or shows it only to its owner (hf auth login)"
    except Exception as error:  # the HTTP client's own errors: no route, proxy, timeout, 5xx
        return f"the hub did not answer ({type(error).__name__})"
    return None
