// SPDX-License-Identifier: Apache-2.0
// What matters in a project: what waits longest, what comes and goes, and what is wrong.

import { get } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Chart } from "../parts/chart.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { at, to } from "../route.js";
import { age, bounded, clock, count, rate, several, visible } from "../text.js";

const EVERY = 5;
// Seconds by which a clock may be off, and for which expired messages may stay.
const CLOCK_OFF = 1;
const SWEEP_BEHIND = 60;

/** The page. */
export function Overview({ route }) {
  const found = useLive(() => get("figures", { window: 600 }), EVERY, [route.project]);
  return html`<div class="title"><h1>Overview</h1></div>
    <${Stale} found=${found} />
    ${waiting(found) ?? html`<${Shown} project=${route.project} found=${found} />`}`;
}

function Shown({ project, found }) {
  const { value } = found;
  if (value.total === 0) return html`<${Nothing} project=${project} />`;
  return html`<${Tiles} found=${found} />
    <${Wrong} value=${value} />
    ${value.rates && html`<${Rates} value=${value} />`}
    <${Lists} project=${project} lists=${value.lists} />`;
}

function Nothing({ project }) {
  return html`<${Empty} title="This project has no queues">
    <p>Post a message to create a queue: <code>zq post --project ${visible(project)} jobs '{"hello": 1}'</code></p>
    <p>Or create one on the page <a href=${at(project, "queues")}>Queues</a>. New queues appear here within seconds.</p>
  </${Empty}>`;
}

function tile(name, figure, more, first = false) {
  return html`<div class=${first ? "tile first" : "tile"}><span class="name">${name}</span><span class="figure">${figure}</span><span class="quiet">${more}</span></div>`;
}

function Tiles({ found }) {
  const now = useClock();
  const { now: figures, total } = found.value;
  const late = found.fault !== null || now - Date.parse(found.value.as_of) > 15000;
  return html`<section aria-label="Figures" class=${late ? "tiles stale" : "tiles"}>
    ${tile("Oldest ready", age(figures.oldest_ready), "without dead letters", true)}
    ${tile("Ready", bounded(figures.ready, figures.at_least), several(total, "queue"))}
    ${tile("Claimed", bounded(figures.claimed, figures.at_least), `${bounded(figures.delayed, figures.at_least)} delayed`)}
    ${tile("In and out", `${rate(figures.in)} / ${rate(figures.out)}`, "messages per second")}
    ${late && html`<p class="quiet asof">As of ${clock(found.value.as_of)}, ${age((now - Date.parse(found.value.as_of)) / 1000)} ago.</p>`}
  </section>`;
}

function Wrong({ value }) {
  const off = Math.abs(value.clock_offset) > CLOCK_OFF && `A server's clock differs from the store's clock by ${age(Math.abs(value.clock_offset))}.`;
  const behind = value.sweep_lag > SWEEP_BEHIND && `Removal of expired messages is ${age(value.sweep_lag)} behind.`;
  const partial = !value.complete && "The store has too many queues, so the figures cover only some of them.";
  const sentences = [off, behind, partial].filter(Boolean);
  return sentences.length > 0 && html`<ul class="banner note">${sentences.map((one) => html`<li key=${one}>${one}</li>`)}</ul>`;
}

function Rates({ value }) {
  const { posted, finished } = value.rates;
  const lines = [
    { name: "In", values: posted },
    { name: "Out", values: finished },
  ];
  return html`<${Chart} title="Messages per second" since=${value.since} step=${value.step} lines=${lines} write=${rate} />`;
}

function Lists({ project, lists }) {
  const of = (title, rows, figure, name) => html`<${List} project=${project} title=${title} rows=${rows} figure=${figure} name=${name} />`;
  return html`<div class="lists">
    ${of("Oldest", lists.oldest, (row) => age(row.oldest_ready), "Age")}
    ${of("Deepest", lists.deepest, (row) => bounded(row.ready + row.delayed + row.claimed, row.at_least), "Messages")}
    ${of("Growing", lists.growing, (row) => `+${rate(row.growth)}`, "Per second")}
    ${of("Dead letters", lists.dead_letters, (row) => bounded(row.ready + row.delayed + row.claimed, row.at_least), "Messages")}
    ${of("Quotas almost reached", lists.quotas, (row) => `${count(row.used)} of ${count(row.limit)}`, "Used")}
  </div>`;
}

function List({ project, title, rows, figure, name }) {
  const link = (row) => (row.limit === undefined ? html`<a href=${to(project, row.name)}>${visible(row.name)}</a>` : visible(row.name));
  return html`<section class="some" aria-label=${title}>
    <h2>${title}</h2>
    ${rows.length === 0
      ? html`<p class="quiet">None.</p>`
      : html`<table class="plain">
          <thead><tr><th scope="col">${title.startsWith("Quotas") ? "Quota" : "Queue"}</th><th scope="col" class="number">${name}</th></tr></thead>
          <tbody>${rows.map((row) => html`<tr key=${row.name} data-row><th scope="row">${link(row)}</th><td class="number">${figure(row)}</td></tr>`)}</tbody>
        </table>`}
  </section>`;
}
