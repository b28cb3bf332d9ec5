"""Open a bucket by its URL, with the credentials that each cloud's own tools use. Credentials never become part of the URL.

s3://BUCKET[/PATH]      AWS_ACCESS_KEY_ID and so on, ~/.aws/credentials, the role of a machine; AWS_ENDPOINT_URL for other services
gs://BUCKET[/PATH]      GOOGLE_APPLICATION_CREDENTIALS, gcloud's application-default credentials, the role of a machine
az://CONTAINER[/PATH]   AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY and so on, the role of a machine
"""

import configparser
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from rl_swarm.clock import Clock, SystemClock
from rl_swarm.errors import ConfigError, StoreAway
from rl_swarm.store.agreement import creates_conditionally
from rl_swarm.store.bucket import NO_BUCKET, BucketStore, reason
from rl_swarm.store.candidates import CandidateBucket

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

DOCUMENT_SECONDS, FILE_SECONDS = 20, 600  # of one request, its body included
PAUSE_SECONDS = 0.2  # before a bucket that failed to open is tried again
RETRIES: "RetryConfig" = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=15),  # after this long without an answer a store is away, as a mount is
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
}
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
REMEDIES = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL unless it is Amazon's",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth application-default login'",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
NO_CREDENTIALS = (
    "instance metadata",
    "metadata endpoint",
    "169.254.169.254",
    "metadata.google.internal",
    "Account must be specified",
)


def open_bucket(scheme: str, rest: str, clock: Clock | None, writable: bool) -> BucketStore:
    """Open a bucket; raise ConfigError if it does not exist or lets nobody in, and StoreAway if it does not answer."""
    name, _, path = rest.strip("/").partition("/")
    url = f"{scheme}://{'/'.join(filter(None, (name, path)))}"
    if not name:
        raise ConfigError(f"GDRIVE_PATH names no bucket, got {url!r}: write {scheme}://BUCKET or {scheme}://BUCKET/PATH")
    clock = clock or SystemClock()
    for left in reversed(range(BucketStore.attempts)):
        try:
            small, large = (_client(scheme, name, path, seconds) for seconds in (DOCUMENT_SECONDS, FILE_SECONDS))
            kind = BucketStore if creates_conditionally(small, writable) else CandidateBucket
            return kind(url, small, large, clock)
        except (BaseError, FileNotFoundError, ValueError) as error:
            failure = _explained(error, scheme, url)
        if isinstance(failure, ConfigError) or not left:
            break
        clock.sleep(PAUSE_SECONDS)
    raise failure


def _client(scheme: str, name: str, path: str, seconds: int) -> ObjectStore:
    profile = aws_profile(os.environ) if scheme == "s3" else {}
    endpoint = next(filter(None, map(os.environ.get, ENDPOINTS[scheme])), profile.get("endpoint"))
    options: ClientConfig = {"timeout": f"{seconds}s", "connect_timeout": "5s", "user_agent": "rl-swarm"}
    if endpoint and endpoint.startswith("http://"):
        options["allow_http"] = True
    common: dict[str, Any] = {"prefix": path or None, "client_options": options, "retry_config": RETRIES}
    if scheme == "s3":
        config: dict[str, Any] = profile | ({"endpoint": endpoint} if endpoint else {})
        return S3Store(name, disable_bulk_delete=True, **common | config)  # not every service deletes many at once
    if scheme == "gs":
        return GCSStore(name, **common)
    return AzureStore(name, **common | ({"endpoint": endpoint} if endpoint else {}))


def aws_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Keys, region and endpoint of the profile in ~/.aws that AWS_PROFILE names; what the environment has wins."""
    profile = environment.get("AWS_PROFILE", "default")
    found = dict[str, str]()
    for variable, name, section in (
        ("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    ):
        path = Path(environment.get(variable) or Path.home() / ".aws" / name).expanduser()
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError):
            raise ConfigError(f"{path} cannot be read: it is no file of profiles, mend it or set {variable}") from None
        if parser.has_section(section):
            found |= dict(parser.items(section))
    names = {"region": "region", "endpoint_url": "endpoint"}
    if "AWS_ACCESS_KEY_ID" not in environment:
        names |= {
            "aws_access_key_id": "access_key_id",
            "aws_secret_access_key": "secret_access_key",
            "aws_session_token": "session_token",
        }
    if "AWS_REGION" in environment or "AWS_DEFAULT_REGION" in environment:
        del names["region"]
    return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}


def _explained(error: Exception, scheme: str, url: str) -> ConfigError | StoreAway:
    said = str(error)
    if any(word in said for word in NO_BUCKET) or isinstance(error, FileNotFoundError):
        return ConfigError(f"GDRIVE_PATH names a bucket that does not exist, got {url!r}: make it first, or correct the name")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | ValueError):
        return ConfigError(f"GDRIVE_PATH cannot be used, {url!r} does not let this user in: {REMEDIES[scheme]}")
    if any(word in said for word in NO_CREDENTIALS):
        return ConfigError(f"GDRIVE_PATH needs credentials, none were found for {url!r}: {REMEDIES[scheme]}")
    why = reason(error) if isinstance(error, BaseError) else type(error).__name__
    return StoreAway(f"{url} does not answer ({why}): check the network and the endpoint, or try again later")
