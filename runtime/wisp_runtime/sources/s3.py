"""A prefix of an S3 bucket, or of another server with S3's API, as a source of weights.

The client is ``obstore``; it signs, retries, and takes credentials from the AWS tools' places: keys, a web
identity, a container's or a machine's role.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import S3Store

from wisp_runtime.errors import (
    AccessDenied,
    ConfigError,
    ModelNotFound,
    RuntimeFailure,
    SourceUnreachable,
    WeightsUnreadable,
)
from wisp_runtime.sources.listing import Buffer, Listing, RemoteFile, is_needed

_READ_BYTES = 64 << 10  # maximum lost when a connection breaks
_READ_S = 30.0
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE")
_MD5 = re.compile(r'"[0-9a-f]{32}"')  # an object that came in parts has "…-PARTS"
_OTHER_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_BAD_KEYS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "XAdminUserNotFound",
)
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (on a cluster: keys of the Secret that spec.model.secretRef "
    "names), or AWS_SKIP_SIGNATURE=true for a public bucket"
)


class BucketSource:
    """``s3://BUCKET/PREFIX``; see :class:`.listing.Source`. The revision is a digest of its objects' tags."""

    def __init__(self, location: str, settings: Mapping[str, str]) -> None:
        """Name a bucket and a prefix; no request is sent yet.

        Args:
            location: ``BUCKET/PREFIX``.
            settings: ``AWS_*`` variables.

        Raises:
            ConfigError: the endpoint is no URL.
        """
        bucket, _, prefix = location.strip("/").partition("/")
        self.uri, self.wanted = f"s3://{location}", "latest"
        self.pinned: str | None = None
        self._endpoint = settings.get("AWS_ENDPOINT_URL", "")
        if self._endpoint and not re.match(r"https?://[^/]", self._endpoint):
            raise ConfigError(
                f"AWS_ENDPOINT_URL is {self._endpoint!r}; it must be an http:// or https:// URL."
            )
        identity = hashlib.sha256(f"{self._endpoint}\n{bucket}\n{prefix}".encode()).hexdigest()[:8]
        self.cache_key = "s3--" + re.sub(r"[^\w.-]+", "--", f"{bucket}/{prefix}")[:100] + f"-{identity}"
        self._bucket, self._prefix, self._settings = bucket, prefix, settings
        self._reader = self._store(_READ_S, retries=3)

    def listing(self, timeout_s: float) -> Listing:
        """List the objects directly below the prefix; raises as :class:`.listing.Source`."""
        with self._explained():
            objects = obstore.list_with_delimiter(self._store(timeout_s, retries=1))["objects"]
        needed = sorted((meta for meta in objects if is_needed(meta["path"])), key=lambda meta: meta["path"])
        versions = [(m["path"], m["size"], m["e_tag"] or str(m["last_modified"])) for m in needed]
        revision = hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
        return Listing(revision, tuple(map(_file, needed)))

    def read(self, file: RemoteFile, start: int, stop: int) -> Iterator[Buffer]:
        """Yield a range of an object as it was listed; raises as :class:`.listing.Source`."""
        options: Any = {"range": (start, stop), **({"if_match": file.tag} if file.tag else {})}
        with self._explained():
            response = obstore.get(self._reader, file.name, options=options)
            for data in response.stream(min_chunk_size=_READ_BYTES):
                yield memoryview(data)

    def _store(self, timeout_s: float, retries: int) -> S3Store:
        """Open the store; obstore itself adds other credentials of the environment."""
        config: Any = {key.lower(): value for key, value in self._settings.items() if key in _KEYS and value}
        config["aws_region"] = (
            self._settings.get("AWS_REGION") or self._settings.get("AWS_DEFAULT_REGION") or "us-east-1"
        )
        if self._endpoint:
            config["aws_endpoint_url"] = self._endpoint
        wait = timedelta(seconds=timeout_s)
        return S3Store(
            self._bucket,
            prefix=self._prefix or None,
            config=config,
            client_options={
                "allow_http": True,
                "connect_timeout": wait,
                "read_timeout": wait,
                "timeout": timedelta(minutes=10),
            },
            retry_config={"max_retries": retries, "retry_timeout": wait},
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the library's errors into ours."""
        try:
            yield
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> RuntimeFailure:
        text = str(error)
        status = int(match[1]) if (match := re.search(r"status code: (\d{3})", text)) else 0
        code = match[1] if (match := re.search(r"<Code>(\w+)</Code>", text)) else ""
        where = f"{self.uri} at {self._endpoint or 'AWS'}"
        if status == 412 or code == "NoSuchKey":
            return WeightsUnreadable(
                f"{where} was changed while it was fetched. Start again to fetch it anew."
            )
        if "/latest/api/token" in text or "/latest/meta-data" in text:
            return AccessDenied(f"no credentials for {where}: set {_CREDENTIALS}.")
        if code in _OTHER_REGION or "redirect" in text:
            return AccessDenied(
                f"{where} is in another region ({code or 'redirected'}): set AWS_REGION to its own."
            )
        if status in (401, 403) or code in _BAD_KEYS:
            return AccessDenied(f"{where} refuses these credentials ({code or status}). Set {_CREDENTIALS}.")
        if code == "NoSuchBucket":
            return ModelNotFound(
                f"there is no bucket {self._bucket} at {self._endpoint or 'AWS'}: check the name."
            )
        if 400 <= status < 500 and status not in (408, 429):
            return ModelNotFound(f"{where} answers HTTP {status} {code}: check bucket, prefix and endpoint.")
        return SourceUnreachable(
            f"{where} could not be reached: {_reason(text)} Check AWS_ENDPOINT_URL and the connection; "
            "fetched data is kept."
        )


def _file(meta: Any) -> RemoteFile:
    tag = meta["e_tag"] or ""
    digest = f"md5:{tag.strip(chr(34))}" if _MD5.fullmatch(tag) else ""
    return RemoteFile(meta["path"], meta["size"], digest, tag)


def _reason(text: str) -> str:
    """Return the reason at the end of the library's first line."""
    first = (text.strip().splitlines() or ["no answer"])[0]
    return first.rsplit(" - ", 1)[-1].rstrip(".:") + "."
