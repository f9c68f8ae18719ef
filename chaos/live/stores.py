"""The object store of a cluster that is hurt: one that is started for it, a folder, or the user's.

Servers reach a store that speaks S3 through the proxy, the harness past it.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from resilient_ps.chaos.live.network import Network
from resilient_ps.chaos.live.plan import FOLDER, SEAWEEDFS
from resilient_ps.errors import NotFound, ResilientPsError
from resilient_ps.storage.blobs import BlobList, DeleteBlobs, ListBlobs
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.storage.runtime.options import StoreOptions, options_from
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS

NAME = "store"
_HTTP = "http://"


@dataclass(frozen=True, slots=True)
class StoreHere:
    """`environment`: for servers. `process`: of a store that was started here. `proxied`: can lines
    to it be struck? `options`: past the proxy. `is_ours`: it goes away with the cluster."""

    url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    options: StoreOptions = field(default_factory=StoreOptions)
    process: SeaweedFS | None = None
    proxied: bool = False
    is_ours: bool = True

    def sweep(self, cluster: str) -> None:
        """Delete all that a cluster left in a store that stays. It must have ended."""
        if self.is_ours or not self.url:
            return
        with suppress(ResilientPsError), closing(open_store(self.url, self.options)) as store:
            while True:
                page = store.do(ListBlobs(f"{cluster}/"))
                assert isinstance(page, BlobList)
                if not page.items:
                    return
                store.do(DeleteBlobs(tuple(item.name for item in page.items)))


def start_seaweedfs(folder: Path, log: Path) -> SeaweedFS:
    """Raises `NotFound` with the remedy when it is not installed."""
    try:
        return SeaweedFS(folder, log=log)
    except NotFound as error:
        raise NotFound(f"{error}; or use --store folder, without faults of the store") from error


def store_here(
    wanted: str, folder: Path, network: Network | None, process: SeaweedFS | None
) -> StoreHere:
    """The store that a plan names. `process`: SeaweedFS, if it is that and runs."""
    if not wanted:
        return StoreHere()
    if wanted == FOLDER:
        path = folder / "store"
        path.mkdir()
        return StoreHere(str(path))
    if wanted == SEAWEEDFS:
        assert process is not None, "it is started first"
        key = (process.access_key, process.secret_key)
        own = process.environment
        options = StoreOptions(endpoint=process.endpoint)
        return _behind(network, StoreHere(process.url, own, options, process), key)
    theirs = StoreHere(wanted, options=options_from(os.environ), is_ours=False)
    if not wanted.startswith("s3://"):
        return theirs
    key = (os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", ""))
    return _behind(network, theirs, key)


def _behind(network: Network | None, store: StoreHere, credentials: tuple[str, str]) -> StoreHere:
    """The store as servers reach it. A store with TLS is reached directly: it knows its name."""
    endpoint = store.options.endpoint
    if network is None or not endpoint.startswith(_HTTP):
        return store
    target = endpoint.removeprefix(_HTTP).rstrip("/")
    public = network.open(NAME, target, http=True, credentials=credentials)
    through = {"RESILIENT_PS_S3_ENDPOINT": f"{_HTTP}{public}"}
    return dataclasses.replace(store, environment={**store.environment, **through}, proxied=True)
