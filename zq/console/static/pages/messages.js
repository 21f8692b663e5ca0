// SPDX-License-Identifier: Apache-2.0
// A listing of messages. It claims no message, and changes neither counts nor order.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, queuePath } from "../api.js";
import { write } from "../json.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { bodyOf } from "../parts/body.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { to } from "../route.js";
import { age, bytes, count, moment, several, visible } from "../text.js";
import { Holder, useHolders } from "./claims.js";
import { RedriveThese } from "./letters.js";

const PAGE = 20;
const EVERY = 5;
// Bytes of the bodies of a page from which on it may have ended by them.
const HEAVY = 200000;
// Characters of a body that a row shows.
const START = 120;
// Characters of a body that the interface calls its start.
const BODY_START = 256;
// Characters of whole bodies that a search loads at most.
const MAX_LOADED = 8_388_608;
// Messages from which on a deletion wants the queue's name typed.
const MANY = 20;
// Columns that are hidden beside an open message.
const ASIDE = ["Available in", "Size", "Holder", "Body"];

/** The states that have a tab, and what the tab says. */
export const STATES = {
  ready: "Ready messages, in the order in which consumers claim them.",
  delayed: "Delayed messages, in the order in which they become ready.",
  claimed: "Claimed messages, oldest first.",
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
  const moved = () => {
    choose([]);
    list.restart();
  };
  const letters = list.rows.filter((row) => row.origin && selected.includes(row.id)).map((row) => row.id);
  return html`<p class="quiet">${queue === route.queue ? STATES[state] : html`<${Elsewhere} route=${route} queue=${queue} rows=${list.rows} />`} Listing does not claim messages.</p>
    <div class="row tools">
      ${list.news > 0 && html`<button type="button" onClick=${list.update}>${several(list.news, "change")}: show</button>`}
      ${letters.length > 0 && html`<${RedriveThese} queue=${queue} ids=${letters} done=${moved} />`}
      ${selected.length > 0 && html`<${Delete} queue=${queue} ids=${selected} done=${moved} />`}
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} queue=${queue} state=${state} list=${list} depth=${depth} chosen=${selected} choose=${choose} />`}`;
}

function Elsewhere({ route, queue, rows }) {
  const own = rows.filter((row) => row.origin === route.queue).length;
  return html`Ready messages of <a href=${to(route.project, queue)}>${visible(queue)}</a>: ${count(own)} of the ${count(rows.length)} loaded came from ${visible(route.queue)} and are listed first.`;
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

function Table({ route, queue, state, list, depth, chosen, choose }) {
  const now = useClock();
  const [text, setText] = useState("");
  const holders = useHolders(route.queue, state === "claimed");
  const whole = useBodies(queue);
  const { rows } = list;
  if (!rows.length) return html`<${Nothing} route=${route} state=${state} depth=${depth} />`;
  const matching = text ? rows.filter((row) => textsOf(row, whole.bodies).some((found) => found.includes(text))) : rows;
  const columns = columnsOf(state, rows);
  const over = (is) => () => (list.over.current = is);
  return html`<div class="row">
      <${Search} text=${text} set=${setText} /> ${text && html`<${Matches} rows=${rows} matching=${matching} whole=${whole} />`}
    </div>
    <div class="scroll" role="region" aria-label="Messages" tabindex="0" onPointerEnter=${over(true)} onPointerLeave=${over(false)}>
      <table class="cards">
        <${Head} columns=${columns} />
        <tbody>${matching.map((row) => html`<${Row} key=${row.id} route=${route} columns=${columns} row=${{ ...row, state, holder: holders[claimOf(row)] }} now=${now} chosen=${chosen} choose=${choose} />`)}</tbody>
      </table>
    </div>
    <${More} list=${list} />`;
}

/** What the search looks at. `bodies`: whole ones by id, of the messages for which they were loaded. */
function textsOf(row, bodies) {
  return [row.id, row.body_start, bodies.get(row.id) ?? "", row.reason ?? "", row.origin ?? ""];
}

function Search({ text, set }) {
  return html`<label class="search">
    <span class="hidden">Search the loaded messages</span>
    <input type="search" data-search placeholder="Search loaded messages  ( / )" autocomplete="off" value=${text} onInput=${(event) => set(event.target.value)} />
  </label>`;
}

/** How many messages match, and the button that loads whole bodies to search in them. */
function Matches({ rows, matching, whole }) {
  const cut = rows.filter((row) => isCut(row) && !whole.bodies.has(row.id));
  const load = () => whole.load(cut).catch((fault) => announce(fault.message, true));
  const where = cut.length ? "the start of the body" : "the body";
  return html`<span class="quiet">${count(matching.length)} of ${several(rows.length, "loaded message")} match by id, reason or ${where}.</span>
    ${cut.length > 0 && html`<button type="button" onClick=${load}>Search full bodies</button>`}`;
}

/** Whether the listing has only the start of the body. */
function isCut({ body_start: start, body_bytes: size }) {
  return start.length >= BODY_START && size > start.length;
}

/** Whole bodies of messages of a queue as texts, by id, as far as they were loaded, up to `MAX_LOADED` characters. */
function useBodies(queue) {
  const [bodies, setBodies] = useState(new Map());
  useEffect(() => setBodies(new Map()), [queue]);
  const load = async (rows) => {
    const found = new Map(bodies);
    let size = [...found.values()].reduce((sum, text) => sum + text.length, 0);
    for (const row of rows) {
      size += row.body_bytes;
      if (size > MAX_LOADED) throw new Error(`The search covers only the first ${bytes(MAX_LOADED)} of bodies. Load fewer messages.`);
      found.set(row.id, write((await bodyOf(queuePath(queue, `/messages/${encodeURIComponent(row.id)}`))).body));
      setBodies(new Map(found));
    }
  };
  return { bodies, load };
}

function claimOf(message) {
  return new URL(message.href, location.href).searchParams.get("claim_id");
}

/** The columns between the id and the body: those of dead letters if some message of the listing is one. */
function columnsOf(state, rows) {
  if (state === "ready" && rows.some((row) => row.origin)) return ["Reason", "From", "Claims before", "Age", "Size"];
  return ["State", "Age", "Available in", "Claims", "Size", ...(state === "claimed" ? ["Holder"] : [])];
}

// What each column shows of a row at a moment, in milliseconds.
const CELLS = {
  State: (row) => html`<${State} name=${row.state} />`,
  Age: (row, now) => html`<span title=${moment(row.created)}>${age((now - Date.parse(row.created)) / 1000)}</span>`,
  "Available in": (row, now) => html`<span title=${moment(row.available_at)}>${row.state === "ready" ? "–" : age(Math.max(0, (Date.parse(row.available_at) - now) / 1000))}</span>`,
  Claims: (row) => count(row.claim_count),
  Size: (row) => bytes(row.body_bytes),
  Holder: (row) => (row.holder ? html`<${Holder} of=${row.holder} />` : "–"),
  Reason: (row) => (row.reason ? html`<span title=${visible(row.reason)}>${visible(row.reason)}</span>` : html`<span class="quiet">no reason given</span>`),
  From: (row) => visible(row.origin ?? "–"),
  "Claims before": (row) => count(row.origin_claim_count),
};

const CLASSES = { Reason: "reason" };

function classOf(column) {
  const kind = CLASSES[column] ?? (["State", "Holder", "From", "Body"].includes(column) ? "" : "number");
  return `${kind}${ASIDE.includes(column) ? " aside" : ""}`;
}

function Head({ columns }) {
  return html`<thead>
    <tr>
      <th scope="col"><span class="hidden">Select</span></th><th scope="col">Id</th>
      ${[...columns, "Body"].map((column) => html`<th key=${column} scope="col" class=${classOf(column)}>${column}</th>`)}
    </tr>
  </thead>`;
}

function Row({ route, columns, row, now, chosen, choose }) {
  const checked = chosen.includes(row.id);
  const toggle = () => choose(checked ? chosen.filter((id) => id !== row.id) : [...chosen, row.id]);
  const href = to(route.project, route.queue, { ...route.query, m: row.id });
  return html`<tr data-row class=${row.id === route.query.m ? "opened" : checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${row.id}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a class="id" href=${href} title=${row.id}>${visible(row.id.slice(-10))}</a></th>
    ${columns.map((column) => html`<td key=${column} class=${classOf(column)} data-name=${column}>${CELLS[column](row, now)}</td>`)}
    <td class="start aside" data-name="Body"><code>${visible(row.body_start.slice(0, START))}</code></td>
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
    ${list.next && html` <button type="button" onClick=${load}>Load more</button>`}
  </p>`;
}

function Nothing({ route, state, depth }) {
  if (route.query.state === "dead") {
    return html`<${Empty} title="No dead letters"><p>No dead letters are left: none arrived, or all were redriven or consumed.</p></${Empty}>`;
  }
  const others = Object.keys(STATES).filter((name) => name !== state && depth?.[name] > 0);
  if (state !== "ready" || others.length) {
    const link = (name) => html` <a key=${name} href=${to(route.project, route.queue, { state: name === "ready" ? "" : name })}>${count(depth[name])} ${name}</a>`;
    return html`<${Empty} title=${`No ${state} messages`}><p>${others.length ? html`Other messages:${others.map(link)}.` : "The queue is empty."}</p></${Empty}>`;
  }
  return html`<${Empty} title="The queue is empty">
    <p>No messages were posted, or consumers have processed all of them.</p>
    <p><a href=${to(route.project, route.queue, { tab: "post" })}>Post a message</a></p>
  </${Empty}>`;
}

function Delete({ queue, ids, done }) {
  const act = async () => {
    for (let at = 0; at < ids.length; at += MANY) {
      await call("DELETE", queuePath(queue, "/messages"), { query: { ids: ids.slice(at, at + MANY) } });
    }
    announce(`Deleted ${several(ids.length, "message")}.`);
    done();
  };
  const body = html`<p>${several(ids.length, "message")} of ${visible(queue)} will be permanently deleted, even if claimed.</p>`;
  const typed = ids.length > MANY ? queue : undefined;
  const question = { title: `Delete ${several(ids.length, "message")}`, verb: "Delete", typed, body, act };
  return html`<span class="quiet">${count(ids.length)} selected</span>
    <${Act} rule="messages:delete_all" kind="danger" onClick=${() => ask(question)}>Delete…</${Act}>`;
}
