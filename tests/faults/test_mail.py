# SPDX-License-Identifier: Apache-2.0
"""Mail to subscribers (contract 9.10, 9.11), sent to an SMTP server and by a command."""

import asyncio
import email
import json
import ssl
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.certificates import issue
from tests.servers import ZqServer, ask, free_port, wait_for
from tests.sink import CONFIG
from zq.errors import StartRefused
from zq.serving.settings import load
from zq.subscriptions.delivery.options import MailOptions
from zq.subscriptions.delivery.retries import Outcome
from zq.subscriptions.delivery.senders import Senders
from zq.subscriptions.delivery.targets import TargetPolicy
from zq.subscriptions.model import Subscription

PAGE = "https://pages.test/confirm"
USER, PASSWORD = "zq@example.org", "secret"
SUBSCRIPTIONS = "/v2/queues/jobs/subscriptions"
TEMPLATES = f"""external_confirmation_url = {PAGE}
subscription_confirmation_email_template = topic:Join, please,sender:Us <us@example.org>,body:{{0}} of {{1}}: {{2}}
unsubscribe_confirmation_email_template = topic:Left,body:{{2}}
mail_senders = ops@example.org,alarms@example.org
"""
TAKES = """import os, sys, tempfile
number, name = tempfile.mkstemp(dir=sys.argv[1])
os.write(number, sys.stdin.buffer.read())
os.rename(name, name + ".mail")
"""


class Mailbox:
    """An SMTP server with TLS and one user, and its received mail."""

    def __init__(self, folder: Path) -> None:
        self.certificate = issue(folder, "certificate", "CN=localhost")
        self.came: list[tuple[str, list[str], EmailMessage]] = []
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.certificate.with_suffix(".key"))
        self.port = free_port()
        self.server = Controller(
            self,
            "127.0.0.1",
            self.port,
            ssl_context=context,
            authenticator=self._knows,
            auth_required=True,
            auth_require_tls=False,  # the connection has implicit TLS, which aiosmtpd does not notice
        )

    def __enter__(self) -> "Mailbox":
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content, policy=default)
        assert isinstance(message, EmailMessage)
        self.came.append((envelope.mail_from, envelope.rcpt_tos, message))
        return "250 OK"

    def _knows(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> AuthResult:
        good = isinstance(given, LoginPassword) and given == LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=good, handled=False)

    def options(self, **changes: Any) -> MailOptions:
        """Return the options of a sender that uses this server."""
        given: dict[str, Any] = {"host": "localhost", "port": self.port, "user": USER, "password": PASSWORD}
        return MailOptions(**given | changes)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    with Mailbox(tmp_path) as started:
        yield started


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, Path]:
    """Return a command that accepts mail, and the folder in which it stores mail."""
    script, folder = tmp_path / "takes mail.py", tmp_path / "mails"
    script.write_text(TAKES)
    folder.mkdir()
    return f"{sys.executable} '{script}' {folder}", folder


def mails_in(folder: Path) -> list[EmailMessage]:
    read = [email.message_from_bytes(each.read_bytes(), policy=default) for each in sorted(folder.glob("*.mail"))]
    return [each for each in read if isinstance(each, EmailMessage)]


def link_of(message: EmailMessage) -> dict[str, str]:
    """Return the parameters of the link in the mail, in order."""
    text = message.get_content()
    return dict(parse_qsl(urlsplit(text[text.index(PAGE) :].strip()).query, keep_blank_values=True))


def agree(server: ZqServer, link: dict[str, str]) -> None:
    """Confirm like the page to which the link leads."""
    headers = {f"URL-{name}": link[name] for name in ("Signature", "Methods", "Paths", "Expires")}
    headers["X-Project-ID"] = link["Project"]
    assert ask(server.url, "PUT", link["Paths"], {"confirmed": True}, headers=headers).status == 204


def subscribe(server: ZqServer, subscriber: str, **options: Any) -> str:
    answer = ask(server.url, "POST", SUBSCRIPTIONS, {"subscriber": subscriber, "ttl": 600, "options": options})
    assert answer.status == 201, answer
    return str(answer.document["subscription_id"])


def post(server: ZqServer, body: object) -> None:
    assert ask(server.url, "POST", "/v2/queues/jobs/messages", {"messages": [{"body": body}]}).status == 201


def send(options: MailOptions, subscriber: str = "mailto:bob@example.org", **given: Any) -> Outcome:
    """Send a mail with the sender of delivery workers."""

    async def attempt() -> Outcome:
        senders = Senders(TargetPolicy(), options, "zq")
        try:
            return await senders.mail(Subscription("a" * 32, subscriber, 60, 0.0, given), "text")
        finally:
            await senders.close()

    return asyncio.run(attempt())


def test_whoever_agrees_gets_messages_by_smtp(mailbox: Mailbox) -> None:
    """The connection uses TLS with a verified certificate, after a login."""
    config = f"{CONFIG}{TEMPLATES}public_url = https://zq.test/\nsmtp_mode = self_local\nsmtp_host = localhost\n"
    config += f"smtp_port = {mailbox.port}\nsmtp_user_name = {USER}\nsmtp_user_password = {PASSWORD}\n"
    with ZqServer("memory:", config=config, env={"SSL_CERT_FILE": str(mailbox.certificate)}) as server:
        id = subscribe(server, "mailto:bob@example.org", **{"from": "alarms@example.org", "subject": "News"})
        post(server, "before it agreed")
        wait_for(lambda: mailbox.came, 60, "a mail that asks")
        sender, to, asked = mailbox.came[0]
        assert (sender, to) == ("us@example.org", ["bob@example.org"])
        assert (asked["Subject"], asked["From"], asked["To"]) == ("Join, please", "Us <us@example.org>", to[0])
        assert asked.get_content().startswith("jobs of acme: ")
        link = link_of(asked)
        assert list(link) == ["Signature", "Methods", "Paths", "Project", "Expires", "Url", "Queue"]
        path = f"{SUBSCRIPTIONS}/{id}/confirm"
        assert (link["Paths"], link["Url"], link["Queue"]) == (path, f"https://zq.test{path}", "jobs")
        agree(server, link)
        posted = {"messages": [{"body": {"n": "é"}, "attributes": {"kind": "x"}}]}
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", posted).status == 201
        wait_for(lambda: len(mailbox.came) > 1, 60, "a message")
        sender, to, told = mailbox.came[1]
        assert (sender, told["From"], told["Subject"]) == ("alarms@example.org", "alarms@example.org", "News")
        document = {"ttl": 3600, "body": {"n": "é"}, "Message_Type": "Notification", "queue_name": "jobs"}
        assert json.loads(told.get_content()) == document
        assert ask(server.url, "PUT", path, {"confirmed": False}).status == 204
        wait_for(lambda: len(mailbox.came) > 2, 60, "a mail to one that left")
        left = mailbox.came[2][2]
        assert (left["Subject"], left["From"]) == ("Left", "alarms@example.org")
        assert left.get_content().startswith(f"{PAGE}?Signature=")


def test_whoever_agrees_gets_messages_by_a_command(command: tuple[str, Path]) -> None:
    """The command runs without a shell, a sender that is not allowed is omitted, and the URI's subject applies."""
    line, folder = command
    with ZqServer("memory:", config=f"{CONFIG}{TEMPLATES}smtp_command = {line}\n") as server:
        subscribe(server, "mailto:bob@example.org?Subject=$(id)", **{"from": "boss@example.org", "subject": "other"})
        [asked] = wait_for(lambda: mails_in(folder), 60, "a mail that asks")
        assert link_of(asked)["Url"] == ""
        agree(server, link_of(asked))
        post(server, 1)
        wait_for(lambda: len(mails_in(folder)) > 1, 60, "a message")
        [told] = [each for each in mails_in(folder) if each["Subject"] != "Join, please"]
        assert (told["To"], told["From"], told["Subject"]) == ("bob@example.org", "ops@example.org", "$(id)")
        assert json.loads(told.get_content())["body"] == 1


def test_without_a_page_nobody_is_asked_by_mail(command: tuple[str, Path]) -> None:
    """9.11: The log has a warning."""
    line, folder = command
    with ZqServer("memory:", config=f"{CONFIG}smtp_command = {line}\n") as server:
        subscribe(server, "mailto:bob@example.org")
        wait_for(lambda: "external_confirmation_url is not set" in server.output, 60, "a warning")
    assert mails_in(folder) == []


def test_no_header_comes_from_a_subscriber(command: tuple[str, Path]) -> None:
    """E3: A stored line break prevents the mail."""
    line, folder = command
    for options in ({"subject": "a\r\nBcc: eve@example.org"}, {"subject": "a\nX: y"}):
        assert not send(MailOptions(line), **options).delivered
    for uri in ("mailto:bob@example.org%0d%0aBcc:eve@example.org", "mailto:bob@example.org?subject=a%0ab"):
        assert not send(MailOptions(line), uri).delivered
    assert mails_in(folder) == []
    assert send(MailOptions(line), **{"from": "boss@example.org\nBcc: eve@example.org"}).delivered
    assert mails_in(folder)[0].keys() == ["To", "Subject", "Auto-Submitted", *mails_in(folder)[0].keys()[3:]]
    assert not {"From", "Bcc"} & set(mails_in(folder)[0].keys())


def test_a_mail_that_was_not_taken_is_no_delivery(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command fails or is missing; or the server is down, refuses the login, or has an unverified certificate."""
    assert send(MailOptions("false")).why == "CalledProcessError"
    assert send(MailOptions("/no/such/command")).why == "FileNotFoundError"
    assert send(mailbox.options()).why == "SSLCertVerificationError"
    monkeypatch.setenv("SSL_CERT_FILE", str(mailbox.certificate))
    assert send(mailbox.options(password="other")).why == "SMTPAuthenticationError"
    assert send(mailbox.options(host="127.0.0.1", port=free_port())).why == "ConnectionRefusedError"
    assert mailbox.came == []
    assert send(mailbox.options()).delivered


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("subject:x", "must have the form topic:"),
        ("", "must have the form topic:"),
        ("body:{3}", "braces except in {0}, {1} and {2}"),
        ("body:{", "braces except in {0}, {1} and {2}"),
        ("body:{0.x}", "braces except in {0}, {1} and {2}"),
    ],
)
def test_an_invalid_template_is_refused_at_the_start(template: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_NOTIFICATION__UNSUBSCRIBE_CONFIRMATION_EMAIL_TEMPLATE", template)
    with pytest.raises(StartRefused) as refusal:
        load()
    assert said in str(refusal.value)
