// SPDX-License-Identifier: Apache-2.0
// One message: its body and all that zq keeps of it.

import { call, queuePath } from "../api.js";
import { parse, write } from "../json.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { Body, copy } from "../parts/body.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Fault, Loading } from "../parts/states.js";
import { go, to } from "../route.js";
import { age, moment, several, visible } from "../text.js";
import { State, stateOf } from "./messages.js";
import { draft } from "./post.js";

const EVERY = 5;
const PASSED = { claimed: "claim ends", delayed: "can be claimed", ready: "could be claimed" };

/** Beside the listing, or in its place where there is no room. `changed`: called when it was deleted. */
export function Message({ route, id, changed }) {
  const path = queuePath(route.queue, `/messages/${encodeURIComponent(id)}`);
  const load = async () => {
    const { text } = await call("GET", path, { query: { detailed: true } });
    return { ...JSON.parse(text), body: parse(text).body, raw: text };
  };
  const found = useLive(load, EVERY, [route.queue, id]);
  const back = to(route.project, route.queue, { ...route.query, m: undefined });
  const gone = found.fault?.status === 404;
  return html`<section class="message" aria-label="Message">
    <div class="title">
      <h2>Message</h2>
      <a class="button" data-close href=${back}>Close</a>
    </div>
    <p class="id whole">${visible(id)}</p>
    ${gone && html`<${Gone} route=${route} />`}
    ${found.fault && !gone && !found.fault.passing && html`<${Fault} fault=${found.fault} again=${found.again} />`}
    ${!found.value && !found.fault && html`<${Loading} />`}
    ${found.value && !gone && html`<${Whole} route=${route} message=${found.value} path=${path} back=${back} changed=${changed} />`}
  </section>`;
}

function Gone({ route }) {
  const history = to(route.project, route.queue, { state: "history" });
  return html`<${Empty} title="It is not in this queue any more">
    <p>It was finished, moved, purged, or has expired. If the queue keeps one, its <a href=${history}>history</a> may have it.</p>
  </${Empty}>`;
}

function Whole({ route, message, path, back, changed }) {
  const again = () => {
    draft.text = write(message.body, 2);
    draft.queue = route.queue;
    go(to(route.project, route.queue, { tab: "post" }));
  };
  const act = async () => {
    await call("DELETE", path);
    announce("The message was deleted.");
    go(back);
    changed();
  };
  const body = html`<p>The message goes for good; all others stay. One that a claim holds is not deleted: its holder is at work.</p>`;
  return html`<${Facts} message=${message} />
    <${Body} value=${message.body} raw=${message.raw} name=${`message-${message.id}.json`} />
    <div class="row">
      <button type="button" onClick=${() => copy(curl(route, message), "The command")}>Copy as curl</button>
      <${Act} rule="messages:create" onClick=${again}>Post again…</${Act}>
      <${Act} rule="messages:delete" kind="danger" onClick=${() => ask({ title: "Delete the message", verb: "Delete", body, act })}>Delete…</${Act}>
    </div>`;
}

function curl(route, message) {
  const url = new URL(`../v2/${queuePath(route.queue, `/messages/${message.id}`)}?detailed=true`, document.baseURI);
  return `curl -H 'Client-ID: ${crypto.randomUUID?.() ?? "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f"}' -H 'X-Project-ID: ${route.project.replaceAll("'", "")}' '${url}'`;
}

function Facts({ message }) {
  const now = useClock();
  const state = stateOf(message, now);
  const due = (Date.parse(message.available_at) - now) / 1000;
  const rows = [
    ["State", html`<${State} name=${state} />`],
    [state === "claimed" ? "Claim ends" : "Available", due > 0 ? `in ${age(due)}, ${moment(message.available_at)}` : moment(message.available_at)],
    ["Posted", `${age((now - Date.parse(message.created)) / 1000)} ago, ${moment(message.created)}`],
    ["Expires", `in ${age(Math.max(0, (Date.parse(message.expires) - now) / 1000))}, ${moment(message.expires)}`],
    ["Life (ttl)", age(message.ttl)],
    ["Claims", several(message.claim_count, "claim")],
    ["Sequence", visible(message.sequence)],
    ["Checksum", message.checksum && visible(message.checksum)],
    ["From the queue", message.origin && visible(message.origin)],
    ["Claims there", message.origin_claim_count],
    ["Reason", message.reason && visible(message.reason)],
  ].filter(([, value]) => value !== undefined && value !== "");
  return html`<dl class="facts">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Timeline} message=${message} state=${state} now=${now} />`;
}

function Timeline({ message, state, now }) {
  const steps = [
    [message.created, "posted"],
    message.origin && [message.created, `came from ${visible(message.origin)}${message.reason ? `: ${visible(message.reason)}` : ""}`],
    [message.available_at, PASSED[state]],
    [message.expires, "expires"],
  ].filter(Boolean);
  return html`<h3>Timeline</h3>
    <ol class="timeline">
      ${steps.map(([when, what]) => html`<li key=${what} class=${Date.parse(when) > now ? "ahead" : undefined}><span class="when">${moment(when)}</span> ${what}</li>`)}
    </ol>
    <p class="quiet">Earlier claims are not recorded, nor who holds it now.</p>`;
}
