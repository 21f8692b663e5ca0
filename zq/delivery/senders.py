# SPDX-License-Identifier: Apache-2.0
"""One attempt of one delivery: by HTTP, or by mail. It is imported when something is first delivered, for its library
takes long."""

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

from zq.clock import own
from zq.core.subscribers import TRUST, mail_of
from zq.delivery.options import MailOptions, Tokens
from zq.delivery.retries import Outcome
from zq.delivery.targets import Forbidden, TargetPolicy, addresses
from zq.delivery.threads import Threads
from zq.errors import Invalid
from zq.model.subscriptions import Subscription
from zq.wire import webhooks

T = TypeVar("T")
# Lookups of names at once, and seconds that one may take.
LOOKUPS: Final = 64
PATIENCE: Final = 3.0
CONNECT: Final = 3.0
WHOLE: Final = 10.0
# Bytes of an answer that are read; and characters of a refusal that its subscription's owner is told.
ANSWER: Final = 65536
TOLD: Final = 120
# Mails that are sent, and tokens that Keystone is asked for, at a time.
THREADS: Final = 8


class JudgingResolver(AbstractResolver):
    """Looks names up for aiohttp, and refuses those of which an address is not allowed. ``OSError`` says so."""

    def __init__(self, policy: TargetPolicy) -> None:
        self._policy = policy
        self._threads = Threads(LOOKUPS, "zq-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of the host."""
        loop = asyncio.get_running_loop()
        ask = loop.run_in_executor(self._threads, lambda: addresses(host, port))
        found = await asyncio.wait_for(ask, PATIENCE)
        if not all(self._policy.allows(address, port) for _, address in found):
            raise Forbidden(f"The host {host} has an address to which nothing is sent.")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown()


def guarded_socket(policy: TargetPolicy) -> Any:
    """Makes sockets for aiohttp: the last judge, who sees the very address, of names and of literals alike."""

    def make(info: Any) -> socket.socket:
        family, kind, protocol, _, where = info
        if not policy.allows(str(where[0]), int(where[1])):
            raise Forbidden("Nothing is sent to this address.")
        return socket.socket(family, kind, protocol)

    return make


class Senders:
    """Of one worker; used in its event loop."""

    def __init__(self, policy: TargetPolicy, mail: MailOptions, agent: str, trusts: Tokens | None = None) -> None:
        connector = aiohttp.TCPConnector(
            limit=0,  # whoever waits for a connection waits in ``Shares``, where no time of the attempt passes
            resolver=JudgingResolver(policy),
            use_dns_cache=False,
            socket_factory=guarded_socket(policy),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=WHOLE, sock_connect=CONNECT),
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

    async def post(self, one: Subscription, id: str, body: bytes, secrets: Sequence[str], hops: int) -> Outcome:
        """By HTTP. A redirection is not followed, and not a success."""
        try:
            trusted = await self._authority(one)
        except (Invalid, TimeoutError) as refusal:
            return Outcome(False, 0, str(refusal) or "Keystone does not answer")
        headers = {
            "Content-Type": "application/json",
            **_text(one.options.get("post_headers")),
            **webhooks.headers(secrets, id, int(own()), body),
            "Zq-Hops": str(hops),
            **trusted,
        }
        url = one.subscriber.removeprefix(TRUST)
        try:
            self._policy.check_url(url)
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                said = await answer.content.read(ANSWER)
                good = answer.status < 300
                return Outcome(good, answer.status, "" if good else _refusal(answer.status, said), answer.status < 400)
        except Invalid as refusal:
            return Outcome(False, 0, str(refusal), final=True)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as failure:
            cause = failure.__cause__ or failure
            forbidden = isinstance(cause, Forbidden) or isinstance(failure, Forbidden)
            return Outcome(False, 0, "the address is not allowed" if forbidden else type(failure).__name__)

    async def _authority(self, one: Subscription) -> Mapping[str, str]:
        """Headers of the trust that a subscriber has; from a thread, for Keystone is asked. Raises ``Invalid``."""
        if not one.subscriber.startswith(TRUST):
            return {}
        if self._trusts is None:
            raise Invalid("This service's auth_strategy is not keystone.")
        return await self._in_thread(WHOLE, self._trusts.headers, one.subscriber, one.options)

    async def mail(self, one: Subscription, text: str, subject: str = "", sender: str = "") -> Outcome:
        """By mail, from a thread. ``subject`` and ``sender``: the operator's, before those of the subscription."""
        try:
            await self._in_thread(3 * WHOLE, self._send, one, text, subject, sender)
        except Invalid as refusal:
            return Outcome(False, 0, str(refusal), final=True)
        except (TimeoutError, OSError, smtplib.SMTPException, subprocess.SubprocessError, ValueError) as failure:
            return Outcome(False, 0, type(failure).__name__)
        return Outcome(True)

    async def _in_thread(self, within: float, call: Callable[..., T], *arguments: Any) -> T:
        """Raises ``TimeoutError`` after so many seconds."""
        return await asyncio.wait_for(
            asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments), within
        )

    def _send(self, one: Subscription, text: str, subject: str, sender: str) -> None:
        chosen = self._mail
        to, named = mail_of(one.subscriber)
        message = EmailMessage()
        message["To"] = to
        message["Subject"] = subject or named or str(one.options.get("subject", ""))
        asked = str(one.options.get("from", ""))
        if chosen_sender := sender or (asked if asked in chosen.senders else next(iter(chosen.senders), "")):
            message["From"] = chosen_sender
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        if chosen.host:
            self._hand_over(message, to)
            return
        # The operator chose the command, and no part of it comes from a subscriber.
        command = shlex.split(chosen.command)
        subprocess.run(command, input=message.as_bytes(), check=True, timeout=WHOLE, capture_output=True)  # noqa: S603

    def _hand_over(self, message: EmailMessage, to: str) -> None:
        """To the server of SMTP, whose certificate is looked at."""
        chosen, trusted = self._mail, ssl.create_default_context()
        with (
            smtplib.SMTP_SSL(chosen.host, chosen.port, timeout=WHOLE, context=trusted)
            if chosen.tls
            else smtplib.SMTP(chosen.host, chosen.port, timeout=WHOLE)
        ) as server:
            server.ehlo_or_helo_if_needed()
            if not chosen.tls and server.has_extn("starttls"):
                server.starttls(context=trusted)
            if chosen.user:
                server.login(chosen.user, chosen.password)
            sender = message["From"].addresses[0].addr_spec if message["From"] else chosen.user or "zq@localhost"
            server.send_message(message, from_addr=sender, to_addrs=[to])


def _refusal(status: int, said: bytes) -> str:
    """The status, and how the answer begins, on one line."""
    start = "".join(each if each.isprintable() else " " for each in said[: 4 * TOLD].decode(errors="replace"))
    return f"status {status}: {' '.join(start.split())[:TOLD]}".removesuffix(": ")


def _text(headers: Any) -> Mapping[str, str]:
    return {name: str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
