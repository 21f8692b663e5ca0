// SPDX-License-Identifier: Apache-2.0
// A listing of messages: it claims nothing, counts nothing and changes no order.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, queuePath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { to } from "../route.js";
import { age, bytes, count, moment, several, visible } from "../text.js";
import { Holder, useHolders } from "./claims.js";

const PAGE = 20;
const EVERY = 5;
// Bytes of the bodies of a page from which on it may have ended by them.
const HEAVY = 200000;
// Characters of a body that a row shows.
const START = 120;
// Messages from which on a deletion wants the queue's name typed.
const MANY = 20;

/** The states that have a tab, and what the tab says. */
export const STATES = {
  ready: "What claims get next, in their order.",
  delayed: "Messages whose moment has not come, the next one first.",
  claimed: "Messages that live claims hold, oldest post first.",
};

/**
 * A page of a listing with the starts of bodies.
 * @param {string} path
 * @param {object} query
 * @returns {Promise<{messages: any[], next: string | undefined}>}
 */
export async function page(path, query) {
  const { messages, links } = await get(path, { limit: PAGE, bodies: "start", detailed: true, ...query });
  const size = messages.reduce((sum, message) => sum + message.body_bytes, 0);
  const link = messages.length >= PAGE || size > HEAVY ? links[0]?.href : undefined;
  return { messages, next: link && new URL(link, location.href).searchParams.get("marker") };
}

/**
 * @param {any} message with its details
 * @param {number} now milliseconds
 * @returns {"claimed" | "delayed" | "ready"}
 */
export function stateOf(message, now) {
  if (message.href.includes("claim_id=")) return "claimed";
  return Date.parse(message.available_at) > now ? "delayed" : "ready";
}

/** The tab of one state. `queue`: whose messages it shows, if not those of the page; then those that came from the page's first. */
export function Messages({ route, queue = route.queue, state = "ready", depth }) {
  const list = useListing(queue, state, queue === route.queue ? "" : route.queue);
  const [chosen, choose] = useState([]);
  const selected = chosen.filter((id) => list.rows.some((row) => row.id === id));
  list.hold.current = selected.length > 0;
  const deleted = () => {
    choose([]);
    list.restart();
  };
  return html`<p class="quiet">${queue === route.queue ? STATES[state] : html`<${Elsewhere} route=${route} queue=${queue} rows=${list.rows} />`} Looking claims nothing.</p>
    <div class="row tools">
      ${list.news > 0 && html`<button type="button" onClick=${list.update}>${several(list.news, "change")}: show</button>`}
      ${selected.length > 0 && html`<${Delete} queue=${queue} ids=${selected} done=${deleted} />`}
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} state=${state} list=${list} depth=${depth} chosen=${selected} choose=${choose} />`}`;
}

function Elsewhere({ route, queue, rows }) {
  const own = rows.filter((row) => row.origin === route.queue).length;
  return html`What is ready in <a href=${to(route.project, queue)}>${visible(queue)}</a>: of ${several(rows.length, "loaded message")}
    ${` ${count(own)} came from ${visible(route.queue)}, which stand first.`}`;
}

/** The first page follows the queue unless the reader is at work in it; then what is new waits. */
function useListing(queue, state, origin) {
  const path = queuePath(queue, "/messages");
  const [hold, over, [shown, setShown]] = [useRef(false), useRef(false), useState(null)];
  const found = useLive(() => page(path, { state }), EVERY, [queue, state]);
  const fresh = found.value;
  useEffect(() => {
    if (fresh && !(shown && (hold.current || over.current || shown.more))) setShown(fresh);
  }, [fresh]);
  const more = async () => {
    const next = await page(path, { state, marker: shown.next });
    setShown({ messages: [...shown.messages, ...next.messages], next: next.next, more: true });
  };
  const restart = () => {
    setShown(null);
    found.again();
  };
  const { messages = [], next } = shown ?? fresh ?? {};
  const rows = origin ? messages.toSorted((one, other) => (other.origin === origin) - (one.origin === origin)) : messages;
  return { found, rows, next, news: changes(fresh, shown), more, update: () => setShown(fresh), restart, hold, over };
}

function changes(fresh, shown) {
  if (!fresh || !shown) return 0;
  const known = new Set(shown.messages.map((message) => message.id));
  const there = new Set(fresh.messages.map((message) => message.id));
  const gone = shown.messages.slice(0, PAGE).filter((message) => !there.has(message.id)).length;
  return gone + fresh.messages.filter((message) => !known.has(message.id)).length;
}

function Table({ route, state, list, depth, chosen, choose }) {
  const now = useClock();
  const [text, setText] = useState("");
  const holders = useHolders(route.queue, state === "claimed");
  const { rows } = list;
  if (!rows.length) return html`<${Nothing} route=${route} state=${state} depth=${depth} />`;
  const matching = text ? rows.filter((row) => row.body_start.includes(text) || row.id.includes(text)) : rows;
  const over = (is) => () => (list.over.current = is);
  return html`<label class="search">
      <span class="hidden">Text in the loaded starts of messages</span>
      <input type="search" data-search placeholder="Text in what is loaded  ( / )" autocomplete="off" value=${text} onInput=${(event) => setText(event.target.value)} />
    </label>
    ${text && html`<span class="quiet">${several(matching.length, "message")} of the ${count(rows.length)} loaded, by where their bodies begin; the rest of the queue is not searched.</span>`}
    <div class="scroll" role="region" aria-label="Messages" tabindex="0" onPointerEnter=${over(true)} onPointerLeave=${over(false)}>
      <table class="cards">
        <${Head} state=${state} />
        <tbody>${matching.map((row) => html`<${Row} key=${row.id} route=${route} state=${state} row=${row} now=${now} holder=${holders[claimOf(row)]} chosen=${chosen} choose=${choose} />`)}</tbody>
      </table>
    </div>
    <${More} list=${list} />`;
}

function claimOf(message) {
  return new URL(message.href, location.href).searchParams.get("claim_id");
}

function Head({ state }) {
  return html`<thead>
    <tr>
      <th scope="col"><span class="hidden">Select</span></th>
      <th scope="col">Id</th>
      <th scope="col">State</th>
      <th scope="col" class="number">Age</th>
      <th scope="col" class="number">Due in</th>
      <th scope="col" class="number">Claims</th>
      <th scope="col" class="number">Size</th>
      ${state === "claimed" && html`<th scope="col">Holder</th>`}
      <th scope="col">Body</th>
    </tr>
  </thead>`;
}

function Row({ route, state, row, now, holder, chosen, choose }) {
  const checked = chosen.includes(row.id);
  const toggle = () => choose(checked ? chosen.filter((id) => id !== row.id) : [...chosen, row.id]);
  const due = (Date.parse(row.available_at) - now) / 1000;
  const href = to(route.project, route.queue, { ...route.query, m: row.id });
  return html`<tr data-row class=${row.id === route.query.m ? "opened" : checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${row.id}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a class="id" href=${href} title=${row.id}>${visible(row.id.slice(-10))}</a></th>
    <td data-name="State"><${State} name=${state} /></td>
    <td class="number" data-name="Age" title=${moment(row.created)}>${age((now - Date.parse(row.created)) / 1000)}</td>
    <td class="number" data-name="Due in" title=${moment(row.available_at)}>${state === "ready" ? "–" : age(Math.max(0, due))}</td>
    <td class="number" data-name="Claims">${count(row.claim_count)}</td>
    <td class="number" data-name="Size">${bytes(row.body_bytes)}</td>
    ${state === "claimed" && html`<td data-name="Holder">${holder ? html`<${Holder} of=${holder} />` : "–"}</td>`}
    <td class="start" data-name="Body"><code>${visible(row.body_start.slice(0, START))}</code></td>
  </tr>`;
}

/** A state by its word and its shape. */
export function State({ name }) {
  return html`<span class=${`mark ${name}`}>${name}</span>`;
}

function More({ list }) {
  const load = () => list.more().catch((fault) => announce(fault.message, true));
  return html`<p class="quiet">
    ${several(list.rows.length, "message")} loaded.
    ${list.next ? html` <button type="button" onClick=${load}>Load more</button>` : " These are all."}
  </p>`;
}

function Nothing({ route, state, depth }) {
  if (route.query.state === "dead") {
    return html`<${Empty} title="No dead letters are ready"><p>Nothing was buried, or it was redriven, or other consumers took it.</p></${Empty}>`;
  }
  const others = Object.keys(STATES).filter((name) => name !== state && depth?.[name] > 0);
  if (state !== "ready" || others.length) {
    const link = (name) => html` <a key=${name} href=${to(route.project, route.queue, { state: name === "ready" ? "" : name })}>${count(depth[name])} ${name}</a>`;
    return html`<${Empty} title=${`Nothing is ${state}`}><p>${others.length ? html`There are${others.map(link)}.` : "Nothing else is in the queue."}</p></${Empty}>`;
  }
  return html`<${Empty} title="The queue is empty">
    <p>Its consumers have taken everything, or nothing was posted yet.</p>
    <p><a href=${to(route.project, route.queue, { tab: "post" })}>Post a message</a></p>
  </${Empty}>`;
}

function Delete({ queue, ids, done }) {
  const act = async () => {
    for (let at = 0; at < ids.length; at += MANY) {
      await call("DELETE", queuePath(queue, "/messages"), { query: { ids: ids.slice(at, at + MANY) } });
    }
    announce(`${several(ids.length, "message")} were deleted.`);
    done();
  };
  const body = html`<p>${several(ids.length, "message")} of ${visible(queue)} go for good, also those that a claim holds. All others stay.</p>`;
  const typed = ids.length > MANY ? queue : undefined;
  const question = { title: `Delete ${several(ids.length, "message")}`, verb: "Delete", typed, body, act };
  return html`<span class="quiet">${count(ids.length)} selected</span>
    <${Act} rule="messages:delete_all" kind="danger" onClick=${() => ask(question)}>Delete…</${Act}>`;
}
