// SPDX-License-Identifier: Apache-2.0
// The console of zq: which page an address shows, and to whom.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { asking, get } from "./api.js";
import { useChanges } from "./live.js";
import { Administration } from "./pages/admin.js";
import { Audit } from "./pages/audit.js";
import { Claims } from "./pages/claims.js";
import { Jobs } from "./pages/jobs.js";
import { Overview } from "./pages/overview.js";
import { Queue } from "./pages/queue.js";
import { Queues } from "./pages/queues.js";
import { Server } from "./pages/server.js";
import { SignIn } from "./pages/signin.js";
import { Subscriptions } from "./pages/subscriptions.js";
import { Topic, Topics } from "./pages/topics.js";
import { Announcer } from "./parts/act.js";
import { Asker } from "./parts/confirm.js";
import { Frame } from "./parts/frame.js";
import { html } from "./parts/html.js";
import { Empty, Fault, Loading } from "./parts/states.js";
import { to, useRoute } from "./route.js";
import { listen, remember, session, settings, tell } from "./session.js";
import { visible } from "./text.js";

const EVERY = 60000;

function App() {
  useChanges();
  const route = useRoute();
  const [wanted, setWanted] = useState("");
  asking.project = route.project;
  asking.wanted = (challenge) => setWanted(challenge || "Bearer");
  useEffect(() => {
    document.title = [visible(route.queue || route.topic), visible(route.project), "zq"].filter(Boolean).join(" · ");
  }, [route.queue, route.topic, route.project]);
  const shown =
    route.page === "" || wanted
      ? html`<${SignIn} route=${route} challenge=${wanted} done=${() => setWanted("")} />`
      : html`<${Project} key=${route.project} route=${route} />`;
  return html`${shown}<${Asker} /><${Announcer} />`;
}

function Project({ route }) {
  const [{ asked, fault }, setState] = useState({ asked: false, fault: null });
  const ask = async () => {
    const refused = await known(route.project).then(() => null, (error) => error);
    setState({ asked: true, fault: refused });
  };
  useEffect(() => {
    ask();
    const timer = setInterval(() => !document.hidden && settings.live && ask(), EVERY);
    return () => clearInterval(timer);
  }, []);
  return html`<${Frame} route=${route}><${Page} route=${route} asked=${asked} fault=${fault} again=${ask} /></${Frame}>`;
}

async function known(project) {
  session.me = await get("me");
  if (session.me.project === project) remember(project);
  tell();
}

function Page({ route, asked, fault, again }) {
  const { me } = session;
  useChanges();
  if (!asked || (me === null && fault === null)) return html`<${Loading} />`;
  if (me === null) return html`<${Fault} fault=${fault} again=${again} />`;
  if (me.project !== route.project) return html`<${Other} route=${route} me=${me} />`;
  if (route.page === "overview") return html`<${Overview} route=${route} />`;
  if (route.page === "server") return html`<${Server} route=${route} />`;
  if (route.page === "queues") return html`<${Queues} route=${route} />`;
  if (route.page === "queue") return html`<${Queue} key=${route.queue} route=${route} />`;
  if (route.page === "topics") return html`<${Topics} key=${route.query.tail} route=${route} />`;
  if (route.page === "topic") return html`<${Topic} key=${route.topic} route=${route} />`;
  if (route.page === "claims") return html`<${Claims} route=${route} />`;
  if (route.page === "subscriptions") return html`<${Subscriptions} key=${route.query.queue ?? route.query.topic} route=${route} />`;
  if (route.page === "jobs") return html`<${Jobs} />`;
  if (route.page === "audit") return html`<${Audit} route=${route} />`;
  if (route.page === "admin") return html`<${Administration} key=${route.query.part} route=${route} />`;
  return html`<${Empty} title="Page not found"><p><a href=${to(route.project)}>Queues of ${visible(route.project)}</a></p></${Empty}>`;
}

function Other({ route, me }) {
  return html`<${Empty} title="This link belongs to another project">
    <p>The link is for the project ${visible(route.project)}. You are signed in to ${visible(me.project)}.</p>
    <p><a href=${to(me.project)}>Queues of ${visible(me.project)}</a> or <a href="#/">sign in</a></p>
  </${Empty}>`;
}

function dressed() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
  else delete document.documentElement.dataset.theme;
}

dressed();
listen(dressed);
render(html`<${App} />`, document.getElementById("app"));
