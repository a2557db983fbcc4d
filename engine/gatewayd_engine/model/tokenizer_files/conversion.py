"""Folder of a checkpoint whose tokenizer is in another file, completed by a ``tokenizer.json``.

The folder is in the user's cache: links to the checkpoint's files, and what was converted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gatewayd_engine.model.derived_folder import FileState, derived_folder
from gatewayd_engine.model.json_fields import SpecError
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.tokenizer_files.sentencepiece_model import sentencepiece_json
from gatewayd_engine.model.tokenizer_files.tekken import tekken_json

TOKENIZER = "tokenizer.json"
SENTENCEPIECE, TEKKEN = "tokenizer.model", "tekken.json"
_CONVERTED = (TEKKEN, SENTENCEPIECE)
"""Best first: Mistral's folders may have both."""
_OTHERS = ("spiece.model", "sentencepiece.bpe.model", "*.tiktoken", "vocab.json", "vocab.txt")
_ADDED, _CONFIG = "added_tokens.json", "tokenizer_config.json"
_MOST_BYTES = 32 << 20
"""Tekken's file has 20 MB, Gemma's SentencePiece model 4."""


def with_tokenizer(folder: Path) -> Path:
    """Return the folder itself, or one with the same files and a converted ``tokenizer.json``.

    Raises:
        LoadError: the tokenizer's file is damaged or of a kind that is not converted, or the cache
            cannot be written; the message says how to convert it otherwise.
    """
    try:
        if (folder / TOKENIZER).exists() or not (folder / "config.json").exists():
            return folder
        found = next((folder / name for name in _CONVERTED if (folder / name).is_file()), None)
        if found is None:
            for pattern in _OTHERS:
                for other in folder.glob(pattern):
                    raise LoadError(f"{other.name} is not converted here")
            return folder
        links = {path.name: path for path in folder.iterdir() if path.is_file()}
        read = (found, *(folder / name for name in (_ADDED, _CONFIG) if name in links))
        states = tuple(map(FileState.of, read))
        texts = {TOKENIZER: _converted(states)}
    except OSError as error:
        raise LoadError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    except (LoadError, SpecError) as error:
        raise LoadError(
            f"{folder} has no {TOKENIZER}, and {error}; make one with transformers: python -c"
            f' "from transformers import AutoTokenizer as T;'
            f" T.from_pretrained('{folder}').save_pretrained('{folder}')\""
        ) from error
    return derived_folder("tokenizers", folder.resolve().name, states, links, texts)


@lru_cache(maxsize=2)
def _converted(states: tuple[FileState, ...]) -> str:
    paths = {Path(state.path).name: Path(state.path) for state in states}
    for state in states:
        if state.size > _MOST_BYTES:
            raise LoadError(f"{Path(state.path).name} has more than {_MOST_BYTES} bytes")
    config = _object(paths[_CONFIG]) if _CONFIG in paths else {}
    added = _object(paths[_ADDED]) if _ADDED in paths else {}
    path = Path(states[0].path)
    if path.name == TEKKEN:
        made = tekken_json(_object(path), path.name, config)
    else:
        made = sentencepiece_json(path.read_bytes(), path.name, config, added)
    return json.dumps(made, ensure_ascii=False)


def _object(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} cannot be read as JSON: {str(error)[:200]}") from error
    if not isinstance(values, dict):
        raise LoadError(f"{path.name} must hold a JSON object")
    return values
