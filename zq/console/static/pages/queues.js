// SPDX-License-Identifier: Apache-2.0
// The queues of a project with their figures, as the server has counted them: sorted, searched and paged there.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { Spark } from "../parts/chart.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, count, counted, rate, several, visible } from "../text.js";
import { go, parsed, to } from "../route.js";
import { PausedMark } from "./pausing.js";
import { askToCreate, askToDelete, askToPurge } from "./queueacts.js";

const PAGE = 100;
const EVERY = 5;
// Seconds after which counts are called old.
const OLD = 10;
// Headers by what they sort by; those without are not sorted by.
const COLUMNS = [
  ["Name", "name"],
  ["Oldest", "oldest"],
  ["Ready", "ready"],
  ["Delayed", "delayed"],
  ["Claimed", "claimed"],
  ["Dead", ""],
  ["In/s", "in"],
  ["Out/s", "out"],
  ["Ten minutes", ""],
];

/** The page. */
export function Queues({ route }) {
  const list = useQueues(route);
  const [chosen, setChosen] = useState([]);
  const selected = chosen.filter((one) => list.rows.some((row) => row.name === one));
  const gone = (names) => {
    list.drop(names);
    setChosen([]);
  };
  return html`<div class="title"><h1>Queues</h1><${Counted} list=${list} /></div>
    <div class="row tools">
      <${Search} route=${route} />
      <${Act} rule="queues:create" kind="main" onClick=${() => askToCreate(route.project)}>Create a queue</${Act}>
      <${Selected} names=${selected} gone=${gone} />
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} list=${list} chosen=${selected} choose=${setChosen} />`}`;
}

/** The first page, asked for again and again; or a later one in the order of that first page, which stays as it is. */
function useQueues({ project, query }) {
  const { name = "", sort = "oldest", order = "" } = query;
  const asked = { limit: PAGE, name, sort, order };
  const [later, setLater] = useState(null);
  const [dropped, setDropped] = useState([]);
  const found = useLive(() => get("figures/queues", asked), EVERY, [project, name, sort, order]);
  useEffect(() => setLater(null), [project, name, sort, order]);
  const page = later?.page ?? found.value;
  const next = page?.links[0] && new URL(page.links[0].href, location.href).searchParams.get("marker");
  const load = async () => {
    const following = await get("figures/queues", { ...asked, marker: next });
    setLater({ page: following, first: (later?.first ?? 1) + PAGE });
  };
  const drop = (names) => {
    setDropped([...dropped, ...names.map((one) => ({ one, at: Date.now() }))]);
    found.again();
  };
  const lately = dropped.filter(({ at }) => page && Date.parse(page.as_of) < at + 1000).map(({ one }) => one);
  const rows = (page?.queues ?? []).filter((row) => !lately.includes(row.name));
  return { found, page, rows, next, load, drop, first: later?.first ?? 1, back: () => setLater(null) };
}

function Counted({ list }) {
  const now = useClock();
  if (!list.page) return null;
  const old = (now - Date.parse(list.page.as_of)) / 1000;
  const partial = list.page.complete ? "" : ", of those that are counted";
  return html`<span class="quiet">${several(list.page.total, "queue")}${partial}, counted ${old > OLD ? `${age(old)} ago` : "now"}</span>`;
}

function Search({ route }) {
  const { name = "" } = route.query;
  const [text, setText] = useState(name);
  const timer = useRef(0);
  useEffect(() => setText(name), [name]);
  const typed = (event) => {
    setText(event.target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => go(to(route.project, "", { ...parsed(location.hash).query, name: event.target.value }), true), 300);
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

function Table({ route, list, chosen, choose }) {
  if (!list.rows.length) return html`<${Nothing} route=${route} />`;
  const row = (queue) => html`<${Row} key=${queue.name} route=${route} queue=${queue} chosen=${chosen} choose=${choose} />`;
  return html`<div class="scroll" role="region" aria-label="Queues" tabindex="0">
      <table class="cards">
        <thead>
          <tr>
            <th scope="col"><span class="hidden">Select</span></th>
            ${COLUMNS.map(([name, sort]) => html`<${Head} key=${name} route=${route} name=${name} sort=${sort} />`)}
          </tr>
        </thead>
        <tbody>${list.rows.map(row)}</tbody>
      </table>
    </div>
    <${Pages} list=${list} />`;
}

function Head({ route, name, sort }) {
  const { sort: now = "oldest", order } = route.query;
  const kind = sort === "name" ? undefined : "number";
  if (!sort) return html`<th scope="col" class="number">${name}</th>`;
  const usual = sort === "name" ? "asc" : "desc";
  const current = now === sort ? (order ?? usual) : "";
  const other = current === usual ? (usual === "asc" ? "desc" : "asc") : "";
  const choose = () => go(to(route.project, "", { ...route.query, sort, order: other }), true);
  const said = { asc: "ascending", desc: "descending" }[current];
  return html`<th scope="col" class=${kind} aria-sort=${said}>
    <button type="button" class="plain" onClick=${choose}>${name}${current && html`<span aria-hidden="true">${current === "asc" ? " ▲" : " ▼"}</span>`}</button>
  </th>`;
}

function figure(name, value) {
  return html`<td class="number" data-name=${name}>${value}</td>`;
}

function Row({ route, queue, chosen, choose }) {
  const checked = chosen.includes(queue.name);
  const toggle = () => choose(checked ? chosen.filter((name) => name !== queue.name) : [...chosen, queue.name]);
  const letters = queue.dead_letter_queue;
  return html`<tr data-row class=${checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${queue.name}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a href=${to(route.project, queue.name)}>${visible(queue.name)}</a><${PausedMark} paused=${queue.paused} /></th>
    ${figure("Oldest", age(queue.oldest_ready))} ${figure("Ready", counted(queue, "ready"))} ${figure("Delayed", counted(queue, "delayed"))}
    ${figure("Claimed", counted(queue, "claimed"))}
    ${figure("Dead", letters ? html`<a href=${to(route.project, letters)} title=${`in ${visible(letters)}`}>${count(queue.dead)}</a>` : html`<span class="quiet">–</span>`)}
    ${figure("In/s", rate(queue.in))} ${figure("Out/s", rate(queue.out))}
    ${figure("Ten minutes", html`<${Spark} values=${queue.recent} />`)}
  </tr>`;
}

function Pages({ list }) {
  const load = () => list.load().catch((fault) => announce(fault.message, true));
  const last = list.first + list.rows.length - 1;
  return html`<p class="row quiet">
    <span>${count(list.first)} to ${count(last)} of ${count(list.page.total)}.${list.first > 1 ? " This page stays as it is." : ""}</span>
    ${list.first > 1 && html`<button type="button" onClick=${list.back}>First page</button>`}
    ${list.next && html`<button type="button" onClick=${load}>Next page</button>`}
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
