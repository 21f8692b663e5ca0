// SPDX-License-Identifier: Apache-2.0
// The history of a queue, newest first: which messages have finished, and how, as long as the queue keeps them.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, queuePath } from "../api.js";
import { useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { go, to } from "../route.js";
import { bytes, count, moment, several, visible } from "../text.js";
import { Whole } from "./message.js";
import { page } from "./messages.js";

const EVERY = 5;
const START = 120;
const WITHIN = { "": "All time", 600: "Last 10 minutes", 3600: "Last hour", 86400: "Last 24 hours", 604800: "Last 7 days" };
const OUTCOMES = { "": "All outcomes", deleted: "deleted", popped: "popped", moved: "moved", dead_lettered: "dead-lettered" };

/** The tab. */
export function History({ route }) {
  const { within = "", outcome = "" } = route.query;
  const [chosen, choose] = useState([]);
  const list = useEntries(route.queue, within, chosen.length > 0);
  const rows = list.rows.filter((row) => !outcome || row.outcome === outcome);
  const select = (name) => (event) => go(to(route.project, route.queue, { ...route.query, [name]: event.target.value }), true);
  return html`<p class="quiet">Finished messages, newest first. A replay posts copies of them as new messages.</p>
    <div class="row tools">
      <${Choice} label="Finished within" choices=${WITHIN} value=${within} select=${select("within")} />
      <${Choice} label="Outcome" choices=${OUTCOMES} value=${outcome} select=${select("outcome")} />
      ${list.news > 0 && html`<button type="button" onClick=${list.update}>${several(list.news, "new entry").replace("entrys", "entries")}: show</button>`}
      ${chosen.length > 0 && html`<${Replay} route=${route} ids=${chosen} done=${() => choose([])} />`}
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} rows=${rows} list=${list} chosen=${chosen} choose=${choose} />`}`;
}

function Choice({ label, choices, value, select }) {
  const options = Object.entries(choices).map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`);
  return html`<label class="row"><span class="hidden">${label}</span><select class="short" value=${value} onChange=${select}>${options}</select></label>`;
}

/** The first page follows the history unless the reader has loaded more or has selected entries; then new ones wait. */
function useEntries(queue, within, held) {
  const path = queuePath(queue, "/history");
  const since = useMemo(() => within && new Date(Date.now() - within * 1000).toISOString(), [within]);
  const load = (marker) => page(path, { order: "desc", since, marker });
  const [shown, setShown] = useState(null);
  const over = useRef(false);
  const found = useLive(() => load(), EVERY, [queue, since]);
  const fresh = found.value;
  useEffect(() => setShown(null), [queue, since]);
  useEffect(() => {
    if (fresh && !(shown?.messages.length && (held || over.current || shown.more))) setShown(fresh);
  }, [fresh]);
  const { messages: rows = [], next } = shown ?? fresh ?? {};
  const known = new Set(rows.map(keyOf));
  const news = shown && fresh ? fresh.messages.filter((row) => !known.has(keyOf(row))).length : 0;
  const more = async () => {
    const added = await load(next);
    setShown({ messages: [...rows, ...added.messages], next: added.next, more: true });
  };
  return { found, rows, next, news, more, over, update: () => setShown(fresh) };
}

function keyOf(row) {
  return `${row.id} ${row.finished}`;
}

function Table({ route, rows, list, chosen, choose }) {
  const [opened, open] = useState("");
  if (!list.rows.length) {
    return html`<${Empty} title=${route.query.within ? "No messages finished in this period" : "No finished messages"}>
      <p>The history keeps messages that were deleted, popped, moved or buried for <a href=${to(route.project, route.queue, { tab: "metadata" })}>_history_ttl</a> seconds.</p>
    </${Empty}>`;
  }
  const load = () => list.more().catch((fault) => announce(fault.message, true));
  const over = (is) => () => (list.over.current = is);
  const row = (entry) => html`<${Row} key=${keyOf(entry)} entry=${entry} opened=${opened} open=${open} chosen=${chosen} choose=${choose} />`;
  return html`<div class="scroll" role="region" aria-label="History" tabindex="0" onPointerEnter=${over(true)} onPointerLeave=${over(false)}>
      <table class="cards">
        <${Head} />
        <tbody>${rows.map(row)}</tbody>
      </table>
    </div>
    <p class="quiet">${rows.length < list.rows.length && `${count(rows.length)} of `}${several(list.rows.length, "entry").replace("entrys", "entries")} loaded.
      ${list.next && html` <button type="button" onClick=${load}>Load more</button>`}</p>`;
}

function Head() {
  return html`<thead>
    <tr><th scope="col"><span class="hidden">Select</span></th><th scope="col">Id</th><th scope="col">Outcome</th><th scope="col">Finished</th>
    <th scope="col" class="number">Claims</th><th scope="col" class="number">Size</th><th scope="col">Body</th></tr>
  </thead>`;
}

function Row({ entry, opened, open, chosen, choose }) {
  const checked = chosen.includes(entry.id);
  const toggle = () => choose(checked ? chosen.filter((id) => id !== entry.id) : [...chosen, entry.id]);
  const is = opened === keyOf(entry);
  return html`<tr data-row class=${checked ? "chosen" : undefined}>
      <td><label class="tick"><input type="checkbox" aria-label=${`Select ${entry.id}`} checked=${checked} onChange=${toggle} /></label></td>
      <th scope="row">
        <button type="button" class="plain id" title=${entry.id} aria-expanded=${is} onClick=${() => open(is ? "" : keyOf(entry))}>${visible(entry.id.slice(-10))}</button>
      </th>
      <td data-name="Outcome"><span class="mark finished">${visible(entry.outcome).replace("_", "-")}</span></td>
      <td class="wide" data-name="Finished">${moment(entry.finished)}</td>
      <td class="number" data-name="Claims">${count(entry.claim_count)}</td>
      <td class="number" data-name="Size">${bytes(entry.body_bytes)}</td>
      <td class="start" data-name="Body"><code>${visible(entry.body_start.slice(0, START))}</code></td>
    </tr>
    ${is && html`<tr><td colspan="7"><${Whole} message=${entry} path=${`messages/${encodeURIComponent(entry.id)}`} member="message" /></td></tr>`}`;
}

function Replay({ route, ids, done }) {
  const act = async () => {
    const answer = await call("POST", queuePath(route.queue, "/history/replay"), { body: JSON.stringify({ ids }) });
    announce(`Replayed ${several(JSON.parse(answer.text).replayed, "message")}.`);
    done();
  };
  const body = html`<p>The server posts copies of ${several(ids.length, "message")} to ${visible(route.queue)} as new messages, with the queue's default ttl and delay.</p>`;
  const question = { title: `Replay ${several(ids.length, "message")}`, verb: "Replay", harmless: true, body, act };
  return html`<span class="quiet">${count(ids.length)} selected</span>
    <${Act} rule="messages:create" kind="main" onClick=${() => ask(question)}>Replay…</${Act}>`;
}
