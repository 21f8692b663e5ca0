// SPDX-License-Identifier: Apache-2.0
// What surrounds every page of a project: its name, the pages, what was chosen in this browser.

import { useState } from "preact/hooks";
import { choose, readOnly, session, settings, signedIn, signOut, tree } from "../session.js";
import { useHeartbeat } from "../live.js";
import { at, go, PAGES } from "../route.js";
import { visible } from "../text.js";
import { html } from "./html.js";
import { KEYS, useKeys } from "./keys.js";
import { Banner } from "./states.js";
import { useModal } from "./confirm.js";

const THEMES = { "": "light", light: "dark", dark: "" };
const LOOPBACK = /^(localhost|.*\.localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;

/** The page, below the bar. */
export function Frame({ route, children }) {
  const [help, setHelp] = useState(false);
  useHeartbeat();
  useKeys(route.project, () => setHelp(true));
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="bar">
      <a class="brand" href="#/" aria-label="zq: all projects"><span aria-hidden="true">zq</span></a>
      <span class="project">${visible(route.project)}</span>
      <nav aria-label="Pages">${PAGES.map(([page, name]) => html`<a key=${page} href=${at(route.project, page)} aria-current=${route.page === page ? "page" : undefined}>${name}</a>`)}</nav>
      <${Wishes} help=${() => setHelp(true)} />
    </header>
    <${Notices} />
    <main id="main" tabindex="-1">${children}</main>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

function skip(event) {
  event.preventDefault();
  document.querySelector("main").focus();
}

function Wishes({ help }) {
  const theme = settings.theme || "system";
  return html`<div class="wishes">
    <button type="button" class="live" aria-pressed=${settings.live} onClick=${() => choose({ live: !settings.live })}>
      ${settings.live ? "Live" : "Paused"}
    </button>
    <button type="button" title="Time zone of displayed times" onClick=${() => choose({ utc: !settings.utc })}>
      ${settings.utc ? "UTC" : "Local time"}
    </button>
    <button type="button" title="Color theme: light, dark or system" onClick=${() => choose({ theme: THEMES[settings.theme] })}>
      Theme: ${theme}
    </button>
    <button type="button" aria-label="Keyboard shortcuts" onClick=${help}>?</button>
    ${signedIn() && html`<button type="button" onClick=${leave}>Sign out</button>`}
  </div>`;
}

function Notices() {
  const { me } = session;
  const bare = me?.auth === "none" && !LOOPBACK.test(location.hostname);
  return html`<${Banner} />
    ${bare && html`<p class="banner open">Authentication is off: anyone who can reach this server has full access. To require credentials, set auth_strategy.</p>`}
    ${readOnly && html`<p class="banner note">This console is read-only ([console] read_only). The setting does not restrict the API; to do that, issue read-only tokens.</p>`}
    ${me && me.console !== tree && html`<p class="banner note">zq was updated: <a href="" onClick=${reload}>reload</a>.</p>`}`;
}

function reload(event) {
  event.preventDefault();
  location.reload();
}

function Help({ close }) {
  const element = useModal(close);
  return html`<dialog ref=${element} aria-labelledby="keys-title">
    <h2 id="keys-title">Keyboard shortcuts</h2>
    <dl class="keys">${KEYS.map(([key, does]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${does}</dd></div>`)}</dl>
    <label class="check">
      <input type="checkbox" checked=${settings.keys} onChange=${(event) => choose({ keys: event.target.checked })} />
      <span>Enable keyboard shortcuts</span>
    </label>
    <p class="quiet">zq ${session.me?.version}</p>
    <div class="row end"><button type="button" class="main" onClick=${close}>Close</button></div>
  </dialog>`;
}

function leave() {
  signOut();
  go("#/");
}
