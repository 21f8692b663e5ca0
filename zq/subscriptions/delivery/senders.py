# SPDX-License-Identifier: Apache-2.0
"""Delivery by HTTP and mail.

Other modules import this module on first use, because the import of aiohttp is slow.
"""

import asyncio
import shlex
import smtplib
import socket
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from zq.clock import local_time
from zq.errors import Invalid
from zq.subscriptions.delivery.options import MailOptions, Tokens
from zq.subscriptions.delivery.retries import Outcome
from zq.subscriptions.delivery.targets import Forbidden, TargetPolicy, resolve
from zq.subscriptions.delivery.threads import Threads
from zq.subscriptions.model import Subscription
from zq.subscriptions.subscribers import TRUST, parse_mailto
from zq.wire import webhooks

T = TypeVar("T")
# The maximum number of concurrent name lookups.
MAX_LOOKUPS: Final = 64
# Timeouts in seconds of a name lookup, of connecting, and of an entire attempt.
LOOKUP_TIMEOUT: Final = 3.0
CONNECT_TIMEOUT: Final = 3.0
TIMEOUT: Final = 10.0
# Maximum number of bytes to read from a response.
MAX_RESPONSE: Final = 65536
# Maximum length of the excerpt of an error response that the subscription's owner can see, in characters.
MAX_SHOWN: Final = 120
# The number of threads that send mail and query Keystone.
THREADS: Final = 8


class CheckingResolver(AbstractResolver):
    """An aiohttp resolver that rejects a host if any of its addresses is not allowed."""

    def __init__(self, policy: TargetPolicy) -> None:
        self._policy = policy
        self._threads = Threads(MAX_LOOKUPS, "zq-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve the host in a thread and return all of its addresses."""
        loop = asyncio.get_running_loop()
        lookup = loop.run_in_executor(self._threads, lambda: resolve(host, port))
        found = await asyncio.wait_for(lookup, LOOKUP_TIMEOUT)
        if not all(self._policy.allows(address, port) for _, address in found):
            raise Forbidden(f"The host {host} has an address that is not allowed.")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown()


def make_socket_factory(policy: TargetPolicy) -> Any:
    """Return a socket factory that rejects addresses that the policy does not allow.

    The check of the resolver is not sufficient, because aiohttp does not resolve IP addresses in URLs.
    """

    def make(info: Any) -> socket.socket:
        family, kind, protocol, _, where = info
        if not policy.allows(str(where[0]), int(where[1])):
            raise Forbidden("This address is not allowed.")
        return socket.socket(family, kind, protocol)

    return make


class Senders:
    """The HTTP and mail clients of one worker. Use them only in the worker's event loop."""

    def __init__(self, policy: TargetPolicy, mail: MailOptions, agent: str, trusts: Tokens | None = None) -> None:
        connector = aiohttp.TCPConnector(
            limit=0,  # ``ConnectionLimits`` limits connections before the timeout of an attempt begins
            resolver=CheckingResolver(policy),
            use_dns_cache=False,
            socket_factory=make_socket_factory(policy),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT, sock_connect=CONNECT_TIMEOUT),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            headers={"User-Agent": agent},
        )
        self._policy = policy
        self._mail = mail
        self._trusts = trusts
        self._threads = Threads(THREADS, "zq-delivery-send")

    async def close(self) -> None:
        await self._session.close()
        self._threads.shutdown()

    async def post(
        self, subscription: Subscription, id: str, body: bytes, secrets: Sequence[str], hops: int
    ) -> Outcome:
        """Deliver by HTTP POST. A redirect counts as a failure.

        ``hops`` is the number of subscriptions that the message has passed through, including ``subscription``.
        """
        try:
            trusted = await self._authority(subscription)
        except (Invalid, TimeoutError) as refusal:
            return Outcome(False, 0, str(refusal) or "Keystone does not answer")
        headers = {
            "Content-Type": "application/json",
            **_convert_headers(subscription.options.get("post_headers")),
            **webhooks.headers(secrets, id, int(local_time()), body),
            "Zq-Hops": str(hops),
            **trusted,
        }
        url = subscription.subscriber.removeprefix(TRUST)
        try:
            self._policy.check_url(url)
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                content = await answer.content.read(MAX_RESPONSE)
                good = answer.status < 300
                return Outcome(
                    good, answer.status, "" if good else _describe_response(answer.status, content), answer.status < 400
                )
        except Invalid as refusal:
            return Outcome(False, 0, str(refusal), is_final=True)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as failure:
            cause = failure.__cause__ or failure
            forbidden = isinstance(cause, Forbidden) or isinstance(failure, Forbidden)
            return Outcome(False, 0, "the address is not allowed" if forbidden else type(failure).__name__)

    async def _authority(self, subscription: Subscription) -> Mapping[str, str]:
        if not subscription.subscriber.startswith(TRUST):
            return {}
        if self._trusts is None:
            raise Invalid("This service's auth_strategy is not keystone.")
        return await self._in_thread(TIMEOUT, self._trusts.headers, subscription.subscriber, subscription.options)

    async def mail(self, subscription: Subscription, text: str, subject: str = "", sender: str = "") -> Outcome:
        """Deliver by mail, and return the outcome."""
        try:
            await self._in_thread(3 * TIMEOUT, self._send, subscription, text, subject, sender)
        except Invalid as refusal:
            return Outcome(False, 0, str(refusal), is_final=True)
        except (TimeoutError, OSError, smtplib.SMTPException, subprocess.SubprocessError, ValueError) as failure:
            return Outcome(False, 0, type(failure).__name__)
        return Outcome(True)

    async def _in_thread(self, within: float, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.wait_for(
            asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments), within
        )

    def _send(self, subscription: Subscription, text: str, subject: str, sender: str) -> None:
        chosen = self._mail
        to, named = parse_mailto(subscription.subscriber)
        message = EmailMessage()
        message["To"] = to
        message["Subject"] = subject or named or str(subscription.options.get("subject", ""))
        named_sender = str(subscription.options.get("from", ""))
        if chosen_sender := sender or (
            named_sender if named_sender in chosen.senders else next(iter(chosen.senders), "")
        ):
            message["From"] = chosen_sender
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        if chosen.host:
            self._send_by_smtp(message, to)
            return
        # The command comes from the operator's configuration only, not from a subscriber.
        command = shlex.split(chosen.command)
        subprocess.run(command, input=message.as_bytes(), check=True, timeout=TIMEOUT, capture_output=True)  # noqa: S603

    def _send_by_smtp(self, message: EmailMessage, to: str) -> None:
        chosen, trusted = self._mail, ssl.create_default_context()
        with (
            smtplib.SMTP_SSL(chosen.host, chosen.port, timeout=TIMEOUT, context=trusted)
            if chosen.tls
            else smtplib.SMTP(chosen.host, chosen.port, timeout=TIMEOUT)
        ) as server:
            server.ehlo_or_helo_if_needed()
            if not chosen.tls and server.has_extn("starttls"):
                server.starttls(context=trusted)
            if chosen.user:
                server.login(chosen.user, chosen.password)
            sender = message["From"].addresses[0].addr_spec if message["From"] else chosen.user or "zq@localhost"
            server.send_message(message, from_addr=sender, to_addrs=[to])


def _describe_response(status: int, content: bytes) -> str:
    start = "".join(each if each.isprintable() else " " for each in content[: 4 * MAX_SHOWN].decode(errors="replace"))
    return f"status {status}: {' '.join(start.split())[:MAX_SHOWN]}".removesuffix(": ")


def _convert_headers(headers: Any) -> Mapping[str, str]:
    return {name: str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
