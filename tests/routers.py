# SPDX-License-Identifier: Apache-2.0
"""A Falcon router that compiles each set of routes once in a process.

The tests create thousands of applications with some seventy routes each. Servers in separate processes use Falcon's own
router.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from unittest import mock

from falcon import routing
from falcon.routing.compiled import CompiledRouter, CompiledRouterNode


class Compiled(NamedTuple):
    """A compiled list of routes: the function that finds a route, and its lookup tables."""

    find: Any
    patterns: list[Any]
    converters: list[Any]
    leaves: list["Leaf"]


class Leaf(NamedTuple):
    """A found route without its resource; ``own`` has the names of the resource's responders by method."""

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
        """Return the route's node for the resource of another application."""
        methods = {method: getattr(resource, name) for method, name in self.own.items()}
        return CompiledRouterNode("", methods | self.others, resource, self.template)


class KnownRouter(CompiledRouter):
    """A router that compiles its routes at the first request, which is when a wrong route raises."""

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
    """Give applications that are created within the context a ``KnownRouter``."""
    with mock.patch.object(routing, "DefaultRouter", KnownRouter):
        yield
