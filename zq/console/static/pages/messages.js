// SPDX-License-Identifier: Apache-2.0
// A listing of messages: it claims nothing, counts nothing and changes no order.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, queuePath } from "../api.js";
import { parse, write } from "../json.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { to } from "../route.js";
import { age, bytes, count, moment, several, visible } from "../text.js";

const PAGE = 20;
const EVERY = 5;
const SELDOM = 30;
// Characters of a page from which on it is asked for seldom.
const HEAVY = 200000;
// Characters of a body that a row shows.
const START = 120;
// Messages from which on a deletion wants the queue's name typed.
const MANY = 20;

/**
 * A page of messages, their bodies exact.
 * @param {string} text
 * @returns {{messages: any[], next: string | undefined, size: number}}
 */
export function page(text) {
  const plain = JSON.parse(text);
  const bodies = parse(text).messages;
  const messages = plain.messages.map((message, at) => ({ ...message, body: bodies[at].body }));
  const full = messages.length >= PAGE || text.length > HEAVY; // a page may end by its bytes, too
  const link = full ? plain.links?.[0]?.href : undefined;
  return { messages, next: link && new URL(link, location.href).searchParams.get("marker"), size: text.length };
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

/** The tab *ready* or *all*. `total`: messages of the queue as counted last. */
export function Messages({ route, total }) {
  const all = route.query.state === "all";
  const list = useListing(route.queue, all);
  const [chosen, choose] = useState([]);
  const selected = chosen.filter((id) => list.rows.some((row) => row.id === id));
  list.hold.current = selected.length > 0;
  const deleted = () => {
    choose([]);
    list.restart();
  };
  return html`<p class="quiet">
      ${all ? "Every message, oldest post first." : "What a claim may get next, oldest post first."} Looking claims nothing.${" "}
      ${all ? "Delayed and claimed ones cannot be listed by themselves yet." : html`Delayed and claimed ones are under <a href=${to(route.project, route.queue, { state: "all" })}>All</a>.`}
    </p>
    <div class="row tools">
      ${list.news > 0 && html`<button type="button" onClick=${list.update}>${several(list.news, "change")}: show</button>`}
      ${selected.length > 0 && html`<${Delete} route=${route} ids=${selected} done=${deleted} />`}
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} list=${list} total=${total} chosen=${selected} choose=${choose} />`}`;
}

/** The first page follows the queue unless the reader is at work in it; then what is new waits. */
function useListing(queue, all) {
  const query = { limit: PAGE, echo: true, include_claimed: all, include_delayed: all, detailed: true };
  const path = queuePath(queue, "/messages");
  const [size, hold, over, [shown, setShown]] = [useRef(0), useRef(false), useRef(false), useState(null)];
  const load = async () => {
    const read = page((await call("GET", path, { query })).text);
    size.current = read.size;
    return read;
  };
  const found = useLive(load, size.current > HEAVY ? SELDOM : EVERY, [queue, all]);
  const fresh = found.value;
  useEffect(() => {
    if (fresh && !(shown && (hold.current || over.current || shown.more))) setShown(fresh);
  }, [fresh]);
  const more = async () => {
    const next = page((await call("GET", path, { query: { ...query, marker: shown.next } })).text);
    setShown({ messages: [...shown.messages, ...next.messages], next: next.next, more: true });
  };
  const restart = () => {
    setShown(null);
    found.again();
  };
  const { messages: rows = [], next } = shown ?? fresh ?? {};
  return { found, rows, next, news: changes(fresh, shown), more, update: () => setShown(fresh), restart, hold, over };
}

function changes(fresh, shown) {
  if (!fresh || !shown) return 0;
  const known = new Set(shown.messages.map((message) => message.id));
  const there = new Set(fresh.messages.map((message) => message.id));
  const gone = shown.messages.slice(0, PAGE).filter((message) => !there.has(message.id)).length;
  return gone + fresh.messages.filter((message) => !known.has(message.id)).length;
}

function Table({ route, list, total, chosen, choose }) {
  const now = useClock();
  const [text, setText] = useState("");
  if (!list.rows.length) return html`<${Nothing} route=${route} total=${total} />`;
  const rows = list.rows.map((row) => ({ ...row, text: write(row.body) }));
  const matching = text ? rows.filter((row) => row.text.includes(text) || row.id.includes(text)) : rows;
  const over = (is) => () => (list.over.current = is);
  return html`<label class="search">
      <span class="hidden">Text in the loaded messages</span>
      <input type="search" data-search placeholder="Text in what is loaded  ( / )" autocomplete="off" value=${text} onInput=${(event) => setText(event.target.value)} />
    </label>
    ${text && html`<span class="quiet">${several(matching.length, "message")} of the ${count(rows.length)} loaded; the rest of the queue is not searched.</span>`}
    <div class="scroll" role="region" aria-label="Messages" tabindex="0" onPointerEnter=${over(true)} onPointerLeave=${over(false)}>
      <table class="cards">
        <${Head} />
        <tbody>${matching.map((row) => html`<${Row} key=${row.id} route=${route} row=${row} now=${now} chosen=${chosen} choose=${choose} />`)}</tbody>
      </table>
    </div>
    <${More} list=${list} />`;
}

function Head() {
  return html`<thead>
    <tr>
      <th scope="col"><span class="hidden">Select</span></th>
      <th scope="col">Id</th>
      <th scope="col">State</th>
      <th scope="col" class="number">Age</th>
      <th scope="col" class="number">Due in</th>
      <th scope="col" class="number">Claims</th>
      <th scope="col" class="number">Size</th>
      <th scope="col">Body</th>
    </tr>
  </thead>`;
}

function Row({ route, row, now, chosen, choose }) {
  const state = stateOf(row, now);
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
    <td class="number" data-name="Size">${bytes(row.text.length)}</td>
    <td class="start" data-name="Body"><code>${visible(row.text.slice(0, START))}</code></td>
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

function Nothing({ route, total }) {
  if (total > 0 && route.query.state !== "all") {
    const href = to(route.project, route.queue, { state: "all" });
    return html`<${Empty} title="Nothing is ready"><p>All of its ${several(total, "message")} are claimed or delayed: <a href=${href}>look at all</a>.</p></${Empty}>`;
  }
  return html`<${Empty} title="The queue is empty">
    <p>Its consumers have taken everything, or nothing was posted yet.</p>
    <p><a href=${to(route.project, route.queue, { tab: "post" })}>Post a message</a></p>
  </${Empty}>`;
}

function Delete({ route, ids, done }) {
  const act = async () => {
    for (let at = 0; at < ids.length; at += MANY) {
      await call("DELETE", queuePath(route.queue, "/messages"), { query: { ids: ids.slice(at, at + MANY) } });
    }
    announce(`${several(ids.length, "message")} were deleted.`);
    done();
  };
  const body = html`<p>${several(ids.length, "message")} of ${visible(route.queue)} go for good, also those that a claim holds. All others stay.</p>`;
  const typed = ids.length > MANY ? route.queue : undefined;
  const question = { title: `Delete ${several(ids.length, "message")}`, verb: "Delete", typed, body, act };
  return html`<span class="quiet">${count(ids.length)} selected</span>
    <${Act} rule="messages:delete_all" kind="danger" onClick=${() => ask(question)}>Delete…</${Act}>`;
}
