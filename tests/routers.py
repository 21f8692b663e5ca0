# SPDX-License-Identifier: Apache-2.0
"""Falcon's router, which compiles the same routes once in a process: thousands of apps are made here, each of which has
some seventy. Servers in processes of their own have falcon's as it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from unittest import mock

from falcon import routing
from falcon.routing.compiled import CompiledRouter, CompiledRouterNode


class Compiled(NamedTuple):
    """Of one list of routes: the function that finds one, and what it looks things up in."""

    find: Any
    patterns: list[Any]
    converters: list[Any]
    leaves: list["Leaf"]


class Leaf(NamedTuple):
    """What is found, without its resource: ``own`` are the names of the resource's responders, by method."""

    template: str | None
    own: dict[str, str]
    others: dict[str, Any]

    @classmethod
    def of(cls, node: CompiledRouterNode) -> "Leaf":
        own, others = {}, {}
        for method, responder in (node.method_map or {}).items():
            if getattr(responder, "__self__", None) is node.resource:
                own[method] = responder.__name__
            else:
                others[method] = responder
        return cls(node.uri_template, own, others)

    def node(self, resource: object) -> CompiledRouterNode:
        """What is found of another app, which has this resource."""
        methods = {method: getattr(resource, name) for method, name in self.own.items()}
        return CompiledRouterNode("", methods | self.others, resource, self.template)


class KnownRouter(CompiledRouter):
    """Its routes are looked at when the first request comes: a wrong one is refused then."""

    known: ClassVar[dict[object, Compiled]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, object] = {}
        """The resource of each template."""

    def add_route(self, uri_template: str, resource: object, **options: Any) -> None:
        assert not options, "No route of zq has any."
        assert not any(name.startswith("on_") for name in vars(resource)), "Responders are of the class."
        self.routes[uri_template] = resource
        self._find = self._compile_and_find

    def _compile(self) -> Any:
        key = tuple((template, type(resource)) for template, resource in self.routes.items())
        if key not in self.known:
            self.known[key] = self._compiled()
        find, self._patterns, self._converters, leaves = self.known[key]
        self._return_values = [leaf.node(self.routes.get(leaf.template or "")) for leaf in leaves]
        return find

    def _compiled(self) -> Compiled:
        self._roots = []
        for template, resource in self.routes.items():
            super().add_route(template, resource)
        find = super()._compile()
        return Compiled(find, self._patterns, self._converters, [Leaf.of(node) for node in self._return_values])


@contextmanager
def known_routes() -> Iterator[None]:
    """Apps that are made within have such a router."""
    with mock.patch.object(routing, "DefaultRouter", KnownRouter):
        yield
