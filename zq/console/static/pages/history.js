// SPDX-License-Identifier: Apache-2.0
// What has finished, as long as the queue keeps it, and how it is posted once more.

import { useState } from "preact/hooks";
import { call, queuePath } from "../api.js";
import { useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { to } from "../route.js";
import { bytes, count, moment, several, visible } from "../text.js";
import { Whole } from "./message.js";
import { page } from "./messages.js";

const EVERY = 5;
const START = 120;

/** The tab. */
export function History({ route }) {
  const path = queuePath(route.queue, "/history");
  const load = (marker) => page(path, { marker });
  const found = useLive(() => load(), EVERY, [route.queue]);
  const [more, setMore] = useState({ rows: [], next: undefined });
  const [chosen, choose] = useState([]);
  const first = found.value?.messages ?? [];
  const known = new Set(first.map(keyOf));
  const rows = [...first, ...more.rows.filter((row) => !known.has(keyOf(row)))];
  const next = more.next === undefined ? found.value?.next : more.next;
  const extend = async () => {
    const added = await load(next);
    setMore({ rows: [...more.rows, ...added.messages], next: added.next ?? null });
  };
  return html`<p class="quiet">What has finished, the first to finish first. A replay posts copies as new messages; the entries stay.</p>
    <div class="row tools">${chosen.length > 0 && html`<${Replay} route=${route} ids=${chosen} done=${() => choose([])} />`}</div>
    <${Stale} found=${found} />
    ${waiting(found) ?? html`<${Table} route=${route} rows=${rows} next=${next} extend=${extend} chosen=${chosen} choose=${choose} />`}`;
}

function keyOf(row) {
  return `${row.id} ${row.finished}`;
}

function Table({ route, rows, next, extend, chosen, choose }) {
  const [opened, open] = useState("");
  if (!rows.length) {
    return html`<${Empty} title="Nothing has finished lately">
      <p>What is deleted, popped, moved or buried is here for as long as <a href=${to(route.project, route.queue, { tab: "metadata" })}>_history_ttl</a> says.</p>
    </${Empty}>`;
  }
  const load = () => extend().catch((fault) => announce(fault.message, true));
  const row = (entry) => html`<${Row} key=${keyOf(entry)} entry=${entry} opened=${opened} open=${open} chosen=${chosen} choose=${choose} />`;
  return html`<div class="scroll" role="region" aria-label="History" tabindex="0">
      <table class="cards">
        <thead>
          <tr><th scope="col"><span class="hidden">Select</span></th><th scope="col">Id</th><th scope="col">Outcome</th><th scope="col">Finished</th>
          <th scope="col" class="number">Claims</th><th scope="col" class="number">Size</th><th scope="col">Body</th></tr>
        </thead>
        <tbody>${rows.map(row)}</tbody>
      </table>
    </div>
    <p class="quiet">${several(rows.length, "entry").replace("entrys", "entries")} loaded. ${next ? html`<button type="button" onClick=${load}>Load more</button>` : "These are all."}</p>`;
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
      <td data-name="Outcome"><span class="mark finished">${visible(entry.outcome).replace("_", " ")}</span></td>
      <td data-name="Finished">${moment(entry.finished)}</td>
      <td class="number" data-name="Claims">${count(entry.claim_count)}</td>
      <td class="number" data-name="Size">${bytes(entry.body_bytes)}</td>
      <td class="start" data-name="Body"><code>${visible(entry.body_start.slice(0, START))}</code></td>
    </tr>
    ${is && html`<tr><td colspan="7"><${Whole} message=${entry} path=${`messages/${encodeURIComponent(entry.id)}`} member="message" /></td></tr>`}`;
}

function Replay({ route, ids, done }) {
  const act = async () => {
    const answer = await call("POST", queuePath(route.queue, "/history/replay"), { body: JSON.stringify({ ids }) });
    announce(`${several(JSON.parse(answer.text).replayed, "message")} were posted again.`);
    done();
  };
  const body = html`<p>Copies of ${several(ids.length, "message")} are posted to ${visible(route.queue)} as new messages, with the queue's own ttl and delay. The entries stay.</p>`;
  const question = { title: `Replay ${several(ids.length, "message")}`, verb: "Replay", harmless: true, body, act };
  return html`<span class="quiet">${count(ids.length)} selected</span>
    <${Act} rule="messages:create" kind="main" onClick=${() => ask(question)}>Replay…</${Act}>`;
}
