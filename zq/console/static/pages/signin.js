// SPDX-License-Identifier: Apache-2.0
// Sign in: to which project, and by which token if the server asks for one.

import { useEffect, useState } from "preact/hooks";
import { call } from "../api.js";
import { html } from "../parts/html.js";
import { Fault, Loading } from "../parts/states.js";
import { go, to } from "../route.js";
import { projects, session, signIn, signOut } from "../session.js";
import { visible } from "../text.js";

const ANY = "default";

/** `challenge`: what a request was refused with, if the page is shown for that; then `done` shows the former page. */
export function SignIn({ route, challenge, done }) {
  const [server, setServer] = useState({ challenge, fault: null, me: null });
  useEffect(() => {
    if (!challenge) probe().then(setServer);
  }, [challenge]);
  const known = server.me || server.challenge;
  return html`<main class="signin" tabindex="-1">
    <div class="brand" aria-hidden="true">zq</div>
    <h1>${server.challenge ? "Sign in" : "Open a project"}</h1>
    ${!known && (server.fault ? html`<${Fault} fault=${server.fault} again=${() => probe().then(setServer)} />` : html`<${Loading} />`)}
    ${server.challenge && html`<${ByToken} route=${route} challenge=${server.challenge} done=${done} />`}
    ${server.me && html`<${ByName} me=${server.me} />`}
  </main>`;
}

async function probe() {
  try {
    const { text } = await call("GET", "me", { project: projects()[0] ?? ANY });
    return { challenge: "", fault: null, me: JSON.parse(text) };
  } catch (fault) {
    return { challenge: fault.challenge, fault, me: null };
  }
}

function ByToken({ route, challenge, done }) {
  const [token, setToken] = useState("");
  const [fault, setFault] = useState(null);
  const enter = async (event) => {
    event.preventDefault();
    signIn(token.trim(), challenge);
    try {
      const { text } = await call("GET", "me", { project: "" });
      session.me = JSON.parse(text);
      done();
      if (route.page === "") go(to(session.me.project));
    } catch (refused) {
      signOut();
      setFault(refused);
    }
  };
  return html`<form onSubmit=${enter}>
    <${TokenField} token=${token} set=${setToken} />
    <p class="quiet">The token is stored only in this tab. It determines the project that you see.</p>
    ${fault && html`<${Fault} fault=${fault} />`}
    <button type="submit" class="main">Sign in</button>
  </form>`;
}

function TokenField({ token, set }) {
  return html`<label class="field">
    <span>Token</span>
    <input type="password" autocomplete="off" required value=${token} onInput=${(event) => set(event.target.value)} />
  </label>`;
}

function ByName({ me }) {
  const [project, setProject] = useState(me.projects?.[0] ?? "");
  const recent = me.projects ?? projects();
  const enter = (event) => {
    event.preventDefault();
    if (project.trim()) go(to(project.trim()));
  };
  return html`<form onSubmit=${enter}>
      <label class="field">
        <span>Project</span>
        <input type="text" autocomplete="off" spellcheck=${false} required value=${project} onInput=${(event) => setProject(event.target.value)} />
      </label>
      <button type="submit" class="main">Open</button>
    </form>
    ${recent.length > 0 &&
    html`<h2>${me.projects ? "Your projects" : "Recent projects"}</h2>
      <ul class="plainlist">${recent.map((name) => html`<li key=${name}><a href=${to(name)}>${visible(name)}</a></li>`)}</ul>`}
    <p class="quiet">${me.auth === "none" ? "Authentication is off." : `Signed in with ${me.auth}.`} zq ${me.version}</p>`;
}
