# SPDX-License-Identifier: Apache-2.0
"""Operations on topics (contract section 13)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from zq.clock import Clock
from zq.core.creation import Topic, TopicCreation, TopicStore
from zq.core.data_keys import DataKeys
from zq.core.extensions import ProtocolKey
from zq.core.followers import Followers
from zq.core.markers import Markers
from zq.core.metadata import ENCRYPTS, NOT_ENCRYPTED, Metadata, MetadataSchema
from zq.core.quotas import AnyQuotas
from zq.core.resources import READ_AHEAD, MetadataResource
from zq.core.rules import DefaultTtls
from zq.errors import TopicNotFound
from zq.model import Page
from zq.model.limits import Limits
from zq.model.topics import TopicRef
from zq.storage.api import Storage


class Topics(MetadataResource[TopicRef, Topic]):
    """Operations on topics: create, list, update, purge and delete."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        default_ttls: DefaultTtls,
        keys: DataKeys,
        quotas: AnyQuotas,
        store: TopicStore,
        creation: TopicCreation,
        followers: Followers,
        protocol_keys: Sequence[ProtocolKey] = (),
    ) -> None:
        unbuilt = {} if keys.enabled else {ENCRYPTS: NOT_ENCRYPTED}
        schema = MetadataSchema("topic", limits, lambda _name: default_ttls.default, unbuilt, protocol_keys)
        markers = Markers(storage.documents, clock)
        super().__init__(store, schema, markers, clock, limits, quotas, followers, creation.forget, TopicNotFound)

    def stored(self, project: str, after: str) -> Page[Topic]:
        return self._store.list(project, after, READ_AHEAD)

    def _admitted(self, ref: TopicRef, _metadata: Metadata) -> AbstractContextManager[None]:
        return self._quotas.admit_topic(ref)
