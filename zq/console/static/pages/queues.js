// SPDX-License-Identifier: Apache-2.0
// The queues of a project, by name, each with its counts: these are asked for one queue after the other.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, queuePath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, count, several, visible } from "../text.js";
import { go, to } from "../route.js";
import { PausedMark } from "./pausing.js";
import { askToCreate, askToDelete, askToPurge } from "./queueacts.js";

const PAGE = 20;
const LIST_EVERY = 10;
const COUNTS_EVERY = 1.25;
const AT_ONCE = 4;

/** The page. */
export function Queues({ route }) {
  const name = route.query.name ?? "";
  const list = useQueues(name);
  const stats = useStats(list.rows.map((row) => row.name));
  const [chosen, setChosen] = useState([]);
  const selected = chosen.filter((one) => list.rows.some((row) => row.name === one));
  const gone = (names) => {
    list.drop(names);
    setChosen([]);
  };
  return html`<div class="title"><h1>Queues</h1><span class="quiet">${list.total}</span></div>
    <div class="row tools">
      <${Search} project=${route.project} name=${name} />
      <${Act} rule="queues:create" kind="main" onClick=${() => askToCreate(route.project)}>Create a queue</${Act}>
      <${Selected} names=${selected} gone=${gone} />
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} list=${list} stats=${stats} chosen=${selected} choose=${setChosen} />`}`;
}

function useQueues(name) {
  const [more, setMore] = useState({ rows: [], next: undefined });
  const query = { limit: PAGE, detailed: true, with_count: true, name };
  const found = useLive(() => get("queues", query), LIST_EVERY, [name]);
  useEffect(() => setMore({ rows: [], next: undefined }), [name]);
  const first = found.value?.queues ?? [];
  const last = first.at(-1)?.name ?? "";
  const rows = [...first, ...more.rows.filter((row) => row.name > last)];
  const next = more.next === undefined ? nextOf(found.value, name) : more.next;
  const load = async () => {
    const page = await get("queues", { ...query, marker: next });
    setMore({ rows: [...rows, ...page.queues], next: nextOf(page, name) });
  };
  const drop = (names) => {
    setMore({ ...more, rows: more.rows.filter((row) => !names.includes(row.name)) });
    found.again();
  };
  const total = found.value && `${count(found.value.count ?? 0)} in the project`;
  return { found, rows, next, load, drop, total };
}

/** Where the next page begins; null if this is the last. A page of a search may end early. */
function nextOf(page, name) {
  const link = page?.links[0]?.href;
  const more = link && (name || page.queues.length >= PAGE);
  return more ? new URL(link, location.href).searchParams.get("marker") : null;
}

/** By name: what is known of it, and when; those that are not known first, then the oldest. */
function useStats(names) {
  const known = useRef(new Map());
  const wanted = useRef(names);
  wanted.current = names;
  const load = async () => {
    const missing = wanted.current.filter((name) => !known.current.has(name));
    const oldest = wanted.current.toSorted((one, other) => known.current.get(one)?.at - known.current.get(other)?.at);
    for (const group of grouped(missing.length ? missing : oldest.slice(0, 1))) {
      await Promise.all(group.map((name) => look(known.current, name)));
    }
    return new Map(known.current);
  };
  const found = useLive(load, COUNTS_EVERY, []);
  const missing = names.some((name) => !known.current.has(name));
  useEffect(() => {
    if (missing) found.again();
  }, [missing, found.at]);
  return found.value ?? new Map();
}

async function look(known, name) {
  const { messages } = await get(queuePath(name, "/stats"));
  known.set(name, { ...messages, at: Date.now() });
}

function grouped(names) {
  const groups = [];
  for (let at = 0; at < names.length; at += AT_ONCE) groups.push(names.slice(at, at + AT_ONCE));
  return groups;
}

function Search({ project, name }) {
  const [text, setText] = useState(name);
  const timer = useRef(0);
  useEffect(() => setText(name), [name]);
  const typed = (event) => {
    setText(event.target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => go(to(project, "", { name: event.target.value }), true), 300);
  };
  return html`<label class="search">
    <span class="hidden">Part of a queue's name</span>
    <input type="search" data-search placeholder="Part of a name  ( / )" autocomplete="off" spellcheck=${false} value=${text} onInput=${typed} />
  </label>`;
}

function Selected({ names, gone }) {
  if (!names.length) return null;
  return html`<span class="quiet">${several(names.length, "queue")} selected</span>
    <${Act} rule="queues:purge" onClick=${() => askToPurge(names, gone)}>Purge…</${Act}>
    <${Act} rule="queues:delete" kind="danger" onClick=${() => askToDelete(names, gone)}>Delete…</${Act}>`;
}

function Table({ route, list, stats, chosen, choose }) {
  const now = useClock();
  if (!list.rows.length) return html`<${Nothing} route=${route} />`;
  const row = (queue) => html`<${Row} key=${queue.name} route=${route} queue=${queue} seen=${stats.get(queue.name)} now=${now} chosen=${chosen} choose=${choose} />`;
  return html`<div class="scroll" role="region" aria-label="Queues" tabindex="0">
      <table class="cards">
        <thead>
          <tr>
            <th scope="col"><span class="hidden">Select</span></th>
            <th scope="col">Name</th>
            <th scope="col" class="number">Waiting</th>
            <th scope="col" class="number">Claimed</th>
            <th scope="col" class="number">Oldest</th>
            <th scope="col">Dead letters go to</th>
            <th scope="col" class="number">Counted</th>
          </tr>
        </thead>
        <tbody>${list.rows.map(row)}</tbody>
      </table>
    </div>
    <${More} list=${list} />`;
}

function Row({ route, queue, seen, now, chosen, choose }) {
  const dead = queue.metadata?._dead_letter_queue;
  const checked = chosen.includes(queue.name);
  const toggle = () => choose(checked ? chosen.filter((name) => name !== queue.name) : [...chosen, queue.name]);
  const late = seen && now - seen.at > 10000;
  return html`<tr data-row class=${checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${queue.name}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a href=${to(route.project, queue.name)}>${visible(queue.name)}</a><${PausedMark} metadata=${queue.metadata} /></th>
    <td class="number" data-name="Waiting">${count(seen?.free)}</td>
    <td class="number" data-name="Claimed">${count(seen?.claimed)}</td>
    <td class="number" data-name="Oldest">${age(seen?.oldest?.age)}</td>
    <td data-name="Dead letters go to">${dead ? html`<a href=${to(route.project, dead)}>${visible(dead)}</a>` : html`<span class="quiet">–</span>`}</td>
    <td class="number quiet" data-name="Counted">${seen ? (late ? `${age((now - seen.at) / 1000)} ago` : "now") : "…"}</td>
  </tr>`;
}

function More({ list }) {
  const load = () => list.load().catch((fault) => announce(fault.message, true));
  return html`<p class="quiet">
    ${several(list.rows.length, "queue")} loaded, by name. Waiting: ready or delayed. Counts are asked for one queue after the other.
    ${list.next && html` <button type="button" onClick=${load}>Load more</button>`}
  </p>`;
}

function Nothing({ route }) {
  if (route.query.name) {
    return html`<${Empty} title="No queue has that in its name"><p>The search is for a part of a name, and case matters.</p></${Empty}>`;
  }
  return html`<${Empty} title="This project has no queues">
    <p>A queue begins with its first message: <code>zq post --project ${visible(route.project)} jobs '{"hello": 1}'</code></p>
    <p><${Act} rule="queues:create" kind="main" onClick=${() => askToCreate(route.project)}>Create a queue</${Act}></p>
  </${Empty}>`;
}
