"""How a store is reached: what does not stand in its URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilient_ps.errors import BadInput

MIB = 1 << 20
CONCURRENCY_MAX = 256
ENVIRONMENT = "RESILIENT_PS_S3_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """For S3 and compatible stores; a directory needs none of it.

    Credentials are no option: they come from where the AWS tools look for them (environment,
    `~/.aws`, a role of the machine). An empty text leaves the choice to the same places.
    """

    endpoint: str = ""  # URL of a store that is not Amazon's: http://10.0.0.5:9000
    region: str = ""  # without any, us-east-1
    path_style: bool | None = None  # http://host/bucket/..; None: for stores with an endpoint
    ca_bundle: str = ""  # file of certificates to trust
    verify_tls: bool = True  # False: for experiments only
    concurrency: int = 4  # threads that use the store at once: so many connections are kept
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0  # the longest silence
    attempt_s: float = 60.0  # of one attempt, and what its bytes take at the slowest rate
    slowest_bytes_per_s: int = 16_384
    attempts: int = 5
    retry_for_s: float = 120.0  # no further attempt begins after that
    backoff_s: float = 0.2  # doubles with each attempt, and is drawn between 0 and that
    backoff_most_s: float = 10.0
    multipart_bytes: int = 64 * MIB  # larger objects are sent in parts
    part_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise BadInput(
                f"store endpoint {self.endpoint!r}: it begins with http:// or https://, as in "
                "http://127.0.0.1:9000"
            )
        for name, least, most in (
            ("concurrency", 1, CONCURRENCY_MAX),
            ("connect_timeout_s", 0.01, 3600),
            ("read_timeout_s", 0.01, 3600),
            ("attempt_s", 0.01, 86_400),
            ("slowest_bytes_per_s", 1, 1 << 40),
            ("attempts", 1, 100),
            ("retry_for_s", 0, 86_400),
            ("backoff_s", 0.001, 3600),
            ("backoff_most_s", 0.001, 3600),
            ("multipart_bytes", 1, 5 << 30),
            ("part_bytes", 5 * MIB, 5 << 30),  # S3's limits
        ):
            if not least <= getattr(self, name) <= most:
                raise BadInput(f"store option {name}: use {least} to {most}")


def options_from(environment: Mapping[str, str]) -> StoreOptions:
    """From `RESILIENT_PS_S3_ENDPOINT`, `_REGION`, `_PATH_STYLE`, `_CA_BUNDLE`, `_VERIFY_TLS`.

    Amazon's own `AWS_ENDPOINT_URL_S3` and `AWS_ENDPOINT_URL` serve where ours is missing.
    """
    endpoint = (
        environment.get(f"{ENVIRONMENT}ENDPOINT", "")
        or environment.get("AWS_ENDPOINT_URL_S3", "")
        or environment.get("AWS_ENDPOINT_URL", "")
    )
    verify_tls = _flag(environment, "VERIFY_TLS")
    return StoreOptions(
        endpoint=endpoint,
        region=environment.get(f"{ENVIRONMENT}REGION", ""),
        path_style=_flag(environment, "PATH_STYLE"),
        ca_bundle=environment.get(f"{ENVIRONMENT}CA_BUNDLE", ""),
        verify_tls=True if verify_tls is None else verify_tls,
    )


def _flag(environment: Mapping[str, str], name: str) -> bool | None:
    text = environment.get(f"{ENVIRONMENT}{name}")
    if text is None:
        return None
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise BadInput(f"{ENVIRONMENT}{name}={text}: use 1 or 0")
