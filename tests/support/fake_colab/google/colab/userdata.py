"""Secrets, of which a notebook may read only those that its user has granted."""

import json
import os


class SecretNotFoundError(Exception): ...


class NotebookAccessError(Exception): ...


def get(key: str) -> str:
    secrets = json.loads(os.environ.get("FAKE_SECRETS", "{}"))
    if key not in secrets:
        raise SecretNotFoundError(f"Secret {key} does not exist.")
    if secrets[key] is None:
        raise NotebookAccessError(f"Notebook does not have access to secret {key}.")
    return str(secrets[key])
