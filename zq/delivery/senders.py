# SPDX-License-Identifier: Apache-2.0
"""One attempt of one delivery: by HTTP, or by mail."""

import asyncio
import smtplib
import subprocess
import time
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from typing import Any, Final

import aiohttp
from msgspec import Struct

from zq.broker.subscribers import mail_of
from zq.delivery.targets import Forbidden, JudgingResolver, TargetPolicy, guarded_socket
from zq.model.subscriptions import Subscription
from zq.wire import webhooks

CONNECT: Final = 3.0
WHOLE: Final = 10.0
# Bytes of an answer that are read, and dropped.
ANSWER: Final = 65536


class Outcome(Struct, frozen=True):
    """``status``: of the answer, 0 = none came; ``why``: what an operator sees of a failure; ``final``: another try
    is not made (contract 9.8: any status below 400 ends them)."""

    delivered: bool
    status: int = 0
    why: str = ""
    final: bool = False


class MailOptions(Struct, frozen=True):
    """How mail goes out: by ``command``, or to a server of SMTP if it has a ``host``."""

    command: str = "/usr/sbin/sendmail -t -oi"
    host: str = ""
    port: int = 465
    user: str = ""
    password: str = ""
    tls: bool = True
    senders: tuple[str, ...] = ()
    """Addresses that ``options.from`` may name."""


class Senders:
    """Of one worker; used in its event loop."""

    def __init__(self, policy: TargetPolicy, mail: MailOptions, agent: str) -> None:
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

    async def close(self) -> None:
        await self._session.close()

    async def post(self, one: Subscription, id: str, body: bytes, secrets: Sequence[str], hops: int) -> Outcome:
        """By HTTP. A redirection is not followed, and not a success."""
        headers = {
            "Content-Type": "application/json",
            **_text(one.options.get("post_headers")),
            **webhooks.headers(secrets, id, int(time.time()), body),
            "Zq-Hops": str(hops),
        }
        url = one.subscriber
        try:
            self._policy.check_port(url)
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                await answer.content.read(ANSWER)
                good = answer.status < 300
                return Outcome(good, answer.status, "" if good else f"status {answer.status}", answer.status < 400)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as failure:
            cause = failure.__cause__ or failure
            forbidden = isinstance(cause, Forbidden) or isinstance(failure, Forbidden)
            return Outcome(False, 0, "the address is not allowed" if forbidden else type(failure).__name__)

    async def mail(self, one: Subscription, document: bytes, subject: str = "", sender: str = "") -> Outcome:
        """By mail, from a thread."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self._send, one, document, subject, sender), 3 * WHOLE)
        except (TimeoutError, OSError, smtplib.SMTPException, subprocess.SubprocessError, ValueError) as failure:
            return Outcome(False, 0, type(failure).__name__)
        return Outcome(True)

    def _send(self, one: Subscription, document: bytes, subject: str, sender: str) -> None:
        chosen = self._mail
        to, named = mail_of(one.subscriber)
        message = EmailMessage()
        message["To"] = to
        message["Subject"] = named or subject or str(one.options.get("subject", ""))
        asked = sender or str(one.options.get("from", ""))
        if asked and (sender or asked in chosen.senders):
            message["From"] = asked
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(document.decode("utf-8", "replace"))
        if not chosen.host:
            # The operator chose the command, and no part of it comes from a subscriber.
            subprocess.run(chosen.command.split(), input=message.as_bytes(), check=True, timeout=WHOLE)  # noqa: S603
            return
        connect = smtplib.SMTP_SSL if chosen.tls else smtplib.SMTP
        with connect(chosen.host, chosen.port, timeout=WHOLE) as server:
            if chosen.user:
                server.login(chosen.user, chosen.password)
            server.send_message(message, from_addr=message["From"] or chosen.user or "zq@localhost", to_addrs=[to])


def _text(headers: Any) -> Mapping[str, str]:
    return {name: str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
