// SPDX-License-Identifier: Apache-2.0
// The server that answers, the others of its deployment, and the limits in force.

import { get } from "../api.js";
import { useLive } from "../live.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { session } from "../session.js";
import { age, count, moment, rate, visible } from "../text.js";

const EVERY = 5;
const SELDOM = 60;

/** The page. */
export function Server() {
  const ready = useLive(() => get("../readyz"), EVERY, []);
  const limits = useLive(() => get("limits"), SELDOM, []);
  return html`<div class="title"><h1>Server</h1></div>
    <p>zq ${session.me.version}. ${ready.value ? "The server is ready." : ready.fault ? visible(ready.fault.description || ready.fault.message) : "…"}</p>
    <h2>Servers</h2>
    ${session.me.admin ? html`<${Servers} />` : html`<${Private} />`}
    <h2>Limits</h2>
    <${Stale} found=${limits} />
    ${waiting(limits) ?? html`<${Limits} limits=${limits.value} />`}`;
}

function Private() {
  if (session.me.auth === "none") {
    return html`<${Empty} title="Only administrators can see the servers">
      <p>To see the requests, waiters and clock of each server, set <code>admin_mode = true</code> or an <code>auth_strategy</code>.</p>
    </${Empty}>`;
  }
  return html`<${Empty} title="Only administrators can see the servers"><p>Your credential does not have the role admin.</p></${Empty}>`;
}

function Servers() {
  const found = useLive(() => get("servers"), EVERY, []);
  return html`<${Stale} found=${found} />
    ${waiting(found) ?? (found.value.servers.length ? html`<${Table} servers=${found.value.servers} />` : html`<${Empty} title="No servers have reported yet"><p>Each server reports every ten seconds.</p></${Empty}>`)}`;
}

const COLUMNS = {
  Process: (one) => one.process,
  Started: (one) => moment(one.since).slice(0, 19),
  "Last report": (one) => moment(one.as_of).slice(11, 19),
  Version: (one) => visible(one.version),
  Store: (one) => visible(one.store),
  Engine: (one) => visible(one.engine),
  "Requests/s": (one) => rate(one.requests),
  "p95 latency": (one) => (one.p95 === null ? "–" : `${count(one.p95 * 1000)} ms`),
  Waiters: (one) => `${count(one.waiters)} of ${count(one.max_waiters)}`,
  Streams: (one) => `${count(one.streams)} of ${count(one.max_streams)}`,
  "Clock offset": (one) => `${one.clock_offset.toFixed(3)} s`,
  "Sweep lag": (one) => age(one.sweep_lag),
};

function Table({ servers }) {
  const row = (one) => html`<tr key=${`${one.server} ${one.process} ${one.since}`} data-row>
    <th scope="row">${visible(one.server)}</th>
    ${Object.entries(COLUMNS).map(([name, write]) => html`<td key=${name} class="number" data-name=${name}>${write(one)}</td>`)}
  </tr>`;
  return html`<div class="scroll" role="region" aria-label="Servers" tabindex="0">
    <table class="cards plain">
      <thead><tr><th scope="col">Server</th>${Object.keys(COLUMNS).map((name) => html`<th key=${name} scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${servers.map(row)}</tbody>
    </table>
  </div>`;
}

function Limits({ limits }) {
  return html`<table class="plain">
    <thead><tr><th scope="col">Limit</th><th scope="col" class="number">Value</th></tr></thead>
    <tbody>${Object.entries(limits).map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td class="number">${count(value)}</td></tr>`)}</tbody>
  </table>`;
}
